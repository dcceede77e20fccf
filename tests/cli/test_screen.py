from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pyte

from gossamer.cli.live_view import Screen, ScreenLine, Writer


def lines(*texts: str) -> list[ScreenLine]:
    return [ScreenLine(text, len(text)) for text in texts]


class Glass:
    """A terminal that only has a screen."""

    def __init__(self, columns: int = 20, rows: int = 8) -> None:
        self.ours, self.theirs = pty.openpty()
        self.resize(columns, rows)
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.ByteStream(self.screen)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self) -> list[str]:
        os.set_blocking(self.ours, False)
        try:
            while data := os.read(self.ours, 65536):
                self.stream.feed(data)
        except OSError:
            pass
        return [line.rstrip() for line in self.screen.display if line.strip()]

    def close(self) -> None:
        os.close(self.ours)
        os.close(self.theirs)


def test_frame_replaces_the_last_one_and_log_lines_scroll_above() -> None:
    glass = Glass()
    writer = Writer(glass.theirs)
    writer.draw(lines("one", "two", "three"))
    writer.say("a warning")
    writer.draw(lines("four", "five"))
    writer.say("another")
    writer.draw(lines("last 1", "last 2"))
    assert writer.close()
    # Closing removes the frame and leaves what was said.
    assert glass.read() == ["a warning", "another"]
    glass.close()


def test_newest_frame_is_drawn() -> None:
    glass = Glass()
    writer = Writer(glass.theirs)
    writer.say("said")
    writer.draw(lines("old", "old"))
    writer.draw(lines("new"))
    os.set_blocking(glass.ours, True)
    while "new" not in (shown := glass.read()) or "said" not in shown:
        pass
    assert shown == ["said", "new"]
    writer.close()
    glass.close()


def test_narrowed_terminal_is_redrawn_cleanly() -> None:
    """Redrawing counts the rows that the old lines take at the new width."""
    glass = Glass(columns=40)
    writer = Writer(glass.theirs)
    writer._shown = lines("x" * 30, "y" * 10, "")
    glass.resize(10, 8)
    assert writer._way_back() == "\x1b[5A"
    writer.close()
    glass.close()


def test_blocked_terminal_does_not_block_the_crawl() -> None:
    reader, writer_end = os.pipe()
    writer = Writer(writer_end)
    for number in range(5000):
        writer.say(f"{number} " + "x" * 1000)
    assert not writer.close()
    os.close(reader)


def test_closed_terminal_is_not_an_error() -> None:
    reader, writer_end = os.pipe()
    os.close(reader)
    writer = Writer(writer_end)
    writer.say("to nobody")
    assert writer.close()
    writer.say("still to nobody")
    os.close(writer_end)


def test_stderr_output_is_escaped_above_the_frame() -> None:
    """In a separate process whose stderr is the terminal: its output and that of its children are captured."""
    glass = Glass(columns=60)
    code = (
        "import asyncio, sys, subprocess\n"
        "from gossamer.cli.live_view import Screen, ScreenLine\n"
        "async def main():\n"
        "    with Screen() as screen:\n"
        "        screen.draw([ScreenLine('frame', 5)])\n"
        "        print('from us \\x1b[2J', file=sys.stderr)\n"
        "        subprocess.run(['sh', '-c', 'echo from a child >&2'], check=True)\n"
        "        await asyncio.sleep(0.1)\n"
        "        screen.draw([ScreenLine('frame 2', 7)])\n"
        "    print('after', file=sys.stderr)\n"
        "asyncio.run(main())\n"
    )
    subprocess.run([sys.executable, "-c", code], stderr=glass.theirs, check=True, timeout=30)
    assert glass.read() == ["from us \\x1b[2J", "from a child", "after"]
    glass.close()


def test_screen_restores_stderr() -> None:
    before = os.fstat(2)

    async def show() -> None:
        with Screen() as screen:
            screen.draw(lines("x"))

    asyncio.run(show())
    assert os.path.samestat(before, os.fstat(2))
