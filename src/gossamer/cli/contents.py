"""The table of contents of the command line: every command under its heading, where it is, and one line about it.

Kept apart from the commands, so that neither the help nor a shell that completes a word has to load them all."""

from __future__ import annotations

from typing import NamedTuple


class CommandEntry(NamedTuple):
    """A command: `module:member` under `gossamer`, and a line of at most 62 letters, which fits every terminal."""

    place: str
    line: str


CONTENTS = {
    "Crawl": {
        "crawl": CommandEntry("cli.crawl:crawl", "Crawl from one or more URLs; the same command again resumes."),
        "try": CommandEntry("cli.trial:trial", "Look at 20 pages before a long crawl, with an estimate."),
        "fetch": CommandEntry("cli.look:fetch", "Fetch one page as a crawl would."),
        "shell": CommandEntry("cli.look:shell", "Explore a page in Python."),
        "init": CommandEntry("cli.init:init", "Write a settings file and a first spider into a folder."),
        "import": CommandEntry("cli.take:take", "Take over what another crawler left, or a list of URLs."),
    },
    "Look and steer": {
        "status": CommandEntry("cli.steer:status", "Show how far a job is, running or not."),
        "pause": CommandEntry("cli.steer:pause", "Pause a running crawl."),
        "resume": CommandEntry("cli.steer:resume", "Let a paused crawl go on."),
        "stop": CommandEntry("cli.steer:stop", "Stop a running crawl; nothing is lost."),
        "delete": CommandEntry("cli.delete:delete", "Delete a job; its results stay unless you say otherwise."),
        "add": CommandEntry("cli.steer:add", "Add URLs to a running crawl."),
        "why": CommandEntry("cli.why:why", "Tell the whole story of a URL: found, let in, visited or not."),
        "audit": CommandEntry("cli.audit:audit", "List every request to a site, with gaps and rules."),
        "report": CommandEntry("cli.report:report", "Write a report of a job with pictures, as one HTML file."),
        "doctor": CommandEntry("cli.doctor:doctor", "Check this machine, and say how to mend what is not well."),
        "serve": CommandEntry("cli.serve:serve", "Serve an API and a dashboard."),
    },
    "Use what was stored": {
        "export": CommandEntry("cli.export:export", "Write pages or items as JSON lines, CSV, Parquet, WARC, ..."),
        "sql": CommandEntry("cli.sql:sql", "Ask a job's files in SQL."),
        "diff": CommandEntry("cli.diff:diff", "List pages that are new, gone or changed between two jobs."),
        "replay": CommandEntry("cli.replay:replay", "Run a spider over stored pages, without a network."),
    },
    "Fleets": {
        "submit": CommandEntry("cli.fleet:submit", "Put a job into a fleet's frontier."),
        "worker": CommandEntry("cli.crawl:worker", "Join a running crawl, here or of a fleet."),
        "scale": CommandEntry("cli.scale:scale", "Print how many workers a fleet's job can feed."),
        "repair": CommandEntry("cli.repair:repair", "Fetch stored pages again whose records are lost."),
        "spread": CommandEntry("cli.spread:spread", "Move a job's shards to other servers while it is crawled."),
        "compact": CommandEntry("cli.compact:compact", "Delete the rows of finished URLs of a job in SQL."),
    },
    "Try out and set up": {
        "simweb": CommandEntry("sim.command:simweb", "Serve a simulated web on loopback, to try crawls on."),
        "simulate": CommandEntry("simulation.command:command", "Crawl simulated webs in virtual time, under faults."),
        "verify": CommandEntry(
            "verify.command:verify", "Prove your frontier and sink: kill workers, count what is lost."
        ),
        "bench": CommandEntry("measure.command:bench", "Measure what pages and frontiers cost on this machine."),
        "plan": CommandEntry("plan.command:plan", "Compute what a crawl of any size takes."),
        "completion": CommandEntry(
            "cli.completion:completion", "Print what makes your shell complete commands and jobs."
        ),
    },
}
"""Heading -> command -> entry, in the order of the help."""

PLACES = {name: entry.place for entries in CONTENTS.values() for name, entry in entries.items()}
"""Where each command is, in the order of the help."""
LINES = {name: entry.line for entries in CONTENTS.values() for name, entry in entries.items()}
"""What each command is for, in a line."""
