"""Entry point of `python -m gossamer` and of the command `gossamer`."""

from __future__ import annotations


def main() -> None:
    """Run the command line. Ctrl-C while it is being loaded exits with 130, without a traceback."""
    try:
        from gossamer.cli import main as run
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    run()


if __name__ == "__main__":
    main()
