"""Where the program starts: Ctrl-C while it is still being loaded is one line, as it is later."""

import sys


def main() -> None:
    """Load the command line and run it; ends the process."""
    try:
        from burnish import cli

        cli.main()
    except KeyboardInterrupt:
        print("burnish: stopped", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
