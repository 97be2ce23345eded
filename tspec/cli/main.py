"""`tspec SUBCOMMAND …`: parses, runs, and turns errors into one sentence and an exit code."""

import argparse
import errno
import logging
import os
import sys
import traceback
from collections.abc import Sequence

from tspec import __version__
from tspec.cli import autotune, bench, demo_model, generate, inspect, train_draft, train_eagle
from tspec.core.errors import ConfigError, TspecError

SUBCOMMANDS = (generate, bench, inspect, demo_model, train_eagle, train_draft, autotune)
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
    args = parser().parse_args(argv)
    try:
        if sys.stdout is None:  # closed by the shell, as `>&-` does
            raise OSError(errno.EBADF, "closed", "standard output")
        _set_up_log(os.environ.get("TSPEC_LOG", "WARNING"))
        status: int = args.handler(args)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader went away, as `head` does
        _drop_unwritable_output()
        return FAILED
    except (TspecError, OSError, MemoryError) as error:
        if args.debug:
            traceback.print_exc()
        print(f"tspec {args.command}: {_sentence(error)}", file=sys.stderr)
        _drop_unwritable_output()
        return USAGE if isinstance(error, ConfigError) else FAILED


def _drop_unwritable_output() -> None:
    """Keep the interpreter from failing once more when it flushes at its end."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _set_up_log(level: str) -> None:
    levels = ("DEBUG", "INFO", "WARNING", "ERROR")
    if level.upper() not in levels:
        raise ConfigError(
            "TSPEC_LOG", got=repr(level), need=f"one of {', '.join(levels)}", fix="Correct or unset it."
        )
    logging.basicConfig(format="tspec: %(message)s", level=level.upper())


def _sentence(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}."
    return " ".join((str(error) or type(error).__name__).split())


if __name__ == "__main__":
    sys.exit(main())
