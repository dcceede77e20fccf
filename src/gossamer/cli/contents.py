"""The table of contents of the command line: every command under its heading, where it is, and one line about it.

Kept apart from the commands, so that neither the help nor a shell that completes a word has to load them all."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """A command: `module:member` under `gossamer`, and a line of at most 62 letters, which fits every terminal."""

    place: str
    line: str


CONTENTS = {
    "Crawl": {
        "crawl": Entry("cli.crawl:crawl", "Crawl from one or more URLs; the same command again resumes."),
        "try": Entry("cli.trial:trial", "Look at 20 pages before a long crawl, with an estimate."),
        "fetch": Entry("cli.look:fetch", "Fetch one page as a crawl would."),
        "shell": Entry("cli.look:shell", "Explore a page in Python."),
        "init": Entry("cli.init:init", "Write a settings file and a first spider into a folder."),
        "import": Entry("cli.take:take", "Take over what another crawler left, or a list of URLs."),
    },
    "Look and steer": {
        "status": Entry("cli.steer:status", "Show how far a job is, running or not."),
        "pause": Entry("cli.steer:pause", "Pause a running crawl."),
        "resume": Entry("cli.steer:resume", "Let a paused crawl go on."),
        "stop": Entry("cli.steer:stop", "Stop a running crawl; nothing is lost."),
        "delete": Entry("cli.delete:delete", "Delete a job; its results stay unless you say otherwise."),
        "add": Entry("cli.steer:add", "Add URLs to a running crawl."),
        "why": Entry("cli.why:why", "Tell the whole story of a URL: found, let in, visited or not."),
        "audit": Entry("cli.audit:audit", "List every request to a site, with gaps and rules."),
        "report": Entry("cli.report:report", "Write a report of a job with pictures, as one HTML file."),
        "doctor": Entry("cli.doctor:doctor", "Check this machine, and say how to mend what is not well."),
        "serve": Entry("cli.serve:serve", "Serve an API and a dashboard."),
    },
    "Use what was stored": {
        "export": Entry("cli.export:export", "Write pages or items as JSON lines, CSV, Parquet, WARC, ..."),
        "sql": Entry("cli.sql:sql", "Ask a job's files in SQL."),
        "diff": Entry("cli.diff:diff", "List pages that are new, gone or changed between two jobs."),
        "replay": Entry("cli.replay:replay", "Run a spider over stored pages, without a network."),
    },
    "Fleets": {
        "submit": Entry("cli.fleet:submit", "Put a job into a fleet's frontier."),
        "worker": Entry("cli.crawl:worker", "Join a running crawl, here or of a fleet."),
        "scale": Entry("cli.scale:scale", "Print how many workers a fleet's job can feed."),
        "repair": Entry("cli.repair:repair", "Fetch stored pages again whose records are lost."),
        "spread": Entry("cli.spread:spread", "Move a job's shards to other servers while it is crawled."),
        "compact": Entry("cli.compact:compact", "Delete the rows of finished URLs of a job in SQL."),
    },
    "Try out and set up": {
        "simweb": Entry("sim.command:simweb", "Serve a simulated web on loopback, to try crawls on."),
        "simulate": Entry("simulation.command:command", "Crawl simulated webs in virtual time, under faults."),
        "verify": Entry("verify.command:verify", "Prove your frontier and sink: kill workers, count what is lost."),
        "bench": Entry("measure.command:bench", "Measure what pages and frontiers cost on this machine."),
        "plan": Entry("plan.command:plan", "Compute what a crawl of any size takes."),
        "completion": Entry("cli.completion:completion", "Print what makes your shell complete commands and jobs."),
    },
}
"""Heading -> command -> entry, in the order of the help."""

PLACES = {name: entry.place for entries in CONTENTS.values() for name, entry in entries.items()}
"""Where each command is, in the order of the help."""
LINES = {name: entry.line for entries in CONTENTS.values() for name, entry in entries.items()}
"""What each command is for, in a line."""
