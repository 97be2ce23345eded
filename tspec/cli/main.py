"""`tspec SUBCOMMAND …`: parses, runs, and turns errors into one sentence and an exit code."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence

from tspec import __version__
from tspec.cli import bench, demo_model, generate, inspect
from tspec.core.errors import ConfigError, TspecError

SUBCOMMANDS = (generate, bench, inspect, demo_model)
DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(prog="tspec", description="Lossless speculative decoding.")
    top.add_argument("--version", action="version", version=f"tspec {__version__}")
    subparsers = top.add_subparsers(dest="command", required=True, metavar="SUBCOMMAND")
    for module in SUBCOMMANDS:
        one = module.add_parser(subparsers)
        one.add_argument("--debug", action="store_true", help="show tracebacks")
        one.set_defaults(handler=module.run)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand. Returns 0 when done, 2 for wrong usage, 1 for any other failure, 130 after Ctrl-C."""
    logging.basicConfig(format="tspec: %(message)s", level=os.environ.get("TSPEC_LOG", "WARNING").upper())
    args = parser().parse_args(argv)
    try:
        status: int = args.handler(args)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader went away, as `head` does; keep the interpreter from complaining when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (TspecError, OSError, MemoryError) as error:
        if args.debug:
            raise
        print(f"tspec {args.command}: {_sentence(error)}", file=sys.stderr)
        return USAGE if isinstance(error, ConfigError) else FAILED


def _sentence(error: BaseException) -> str:
    return " ".join((str(error) or type(error).__name__).split())


if __name__ == "__main__":
    sys.exit(main())
