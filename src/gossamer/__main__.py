"""`python -m gossamer`, and what the command `gossamer` starts with."""

from __future__ import annotations


def main() -> None:
    """Run the command line. Ctrl-C while it is being loaded is Ctrl-C, and not an error to be shown."""
    try:
        from gossamer.cli import main as run
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    run()


if __name__ == "__main__":
    main()
