"""What is put into a frontier comes out as it was, as tests."""

from __future__ import annotations

from typing import Any

import msgspec

from gossamer.testing.harness import Harness, Suite, note, outcomes, page, pages, scenario


class Copies(Suite):
    """What is put in comes out as it was."""

    def strings(self) -> list[str]:
        """Text that programs trip over."""
        return [
            "",
            " ",
            "\x00",
            "\x7f\x1b[31m",
            "'; DROP TABLE urls; --",
            "\u202eabc",
            "é\U0001f577",
            '{}[]"\\',
            "a" * 5000,
        ]

    @scenario(delay=0.0)
    async def test_a_request_comes_out_as_it_was_put_in(self, harness: Harness) -> None:
        wanted = {}
        for key, text in enumerate(self.strings(), 1):
            wanted[key] = page(
                key,
                f"{key % 7}.example",
                priority=key % 3 - 1,
                depth=key % 4,
                referrer=f"http://r.example/{text}",
                label=text,
                meta={text: [text, {"deep": None}], "n": 1.5, "big": 1 << 60, "yes": True},
                method="POST" if key % 2 else "PUT",
                headers={"X-Text": text},
                body=text.encode(),
            )
        await harness.frontier.add(list(wanted.values()))
        if harness.durable:
            await harness.reopen()
        found: dict[int, Any] = {}
        while (grant := await self.lease(harness.frontier)).leases:
            for lease in grant.leases:
                found |= {request.key: request for request in lease.requests}
                await harness.frontier.complete(outcomes(lease))
        assert found == wanted

    @scenario(delay=0.0)
    async def test_a_link_names_the_page_that_it_was_found_on(self, harness: Harness) -> None:
        frontier = harness.frontier
        await frontier.add(pages(1))
        lease = await self.one(frontier)
        links = (page(2), page(3, referrer="http://other.example/"), page(4, label="x"))
        await frontier.complete(outcomes(lease, links=links))
        if harness.durable:
            await harness.reopen()
        found = {request.key: request.referrer for request in (await self.one(harness.frontier)).requests}
        parent = "http://a.example/1"
        assert found == {2: parent, 3: "http://other.example/", 4: parent}

    @scenario(delay=0.0)
    async def test_what_a_visit_leaves_is_there_at_the_next(self, harness: Harness) -> None:
        """Also when a try in between left nothing."""
        await harness.frontier.add(pages(1))
        states = [{"etag": text, "n": number} for number, text in enumerate(self.strings()[:20])]
        before: dict[str, Any] | None = None
        for number, state in enumerate(states):
            for _ in range(2):
                lease = await self.one(harness.frontier)
                assert lease.requests[0].state == before
                await harness.frontier.complete(outcomes(lease, "retry", again_in=0.0))
                if harness.durable and number in (1, 3):
                    await harness.reopen()
            lease = await self.one(harness.frontier)
            assert lease.requests[0].state == before
            await harness.frontier.complete(outcomes(lease, "done", again_in=0.0, state=state))
            before = state

    @scenario(delay=0.0)
    async def test_what_is_noted_of_a_site_comes_with_its_lease(self, harness: Harness) -> None:
        await harness.frontier.add(pages(1, 2))
        lease = await self.one(harness.frontier, batch=1)
        memo = {text: text for text in self.strings()} | {"cookies": [1, [["in", "hush"]]], "cookies.1": ["hush"]}
        robots = {f"http://a.example/{number}": text.encode() for number, text in enumerate(self.strings())}
        await harness.frontier.complete(outcomes(lease), notes=[note(lease, memo=memo, robots=robots)])
        if harness.durable:
            await harness.reopen()
        again = await self.one(harness.frontier)
        assert (again.memo, again.robots) == (memo, robots)
        steering: Any = harness.frontier
        if hasattr(steering, "site"):
            # Whoever has the cookies of a site is logged in there.
            assert "hush" not in repr(await steering.site(again.site))
        more = note(again, memo={"": "new", "more": [1]}, robots={"http://a.example/0": b"new"})
        await harness.frontier.complete([], notes=[more])
        await harness.frontier.release([again])
        again = await self.one(harness.frontier)
        assert again.memo == {**memo, "": "new", "more": [1]}
        assert again.robots == {**robots, "http://a.example/0": b"new"}

    @scenario()
    async def test_a_job_has_a_view_of_an_unknown_lane(self, harness: Harness) -> None:
        """Outcomes, notes and leases of nobody are stale, not errors."""
        frontier = harness.frontier
        await frontier.add(pages(1))
        lease = await self.one(frontier)
        nobody = msgspec.structs.replace(lease, token=lease.token + 1000, lane=77, site="nowhere.example")
        receipt = await frontier.complete(outcomes(nobody, links=(page(5),)), notes=[note(nobody, close="x")])
        assert (receipt.accepted, receipt.stale) == (0, 1)
        assert await frontier.extend([nobody], seconds=self.tick) == []
        await frontier.release([nobody])
        counts = await frontier.counts()
        # Links that belong to another shard go there before anybody asks whether the outcome counts.
        known = 1 if harness.one_store else 2
        assert (counts.leased, counts.known, counts.stale) == (1, known, 1)
