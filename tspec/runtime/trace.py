"""One JSON line a round: what was proposed by whom, what it was expected to give and take, and what it did."""

import json
import time
from collections.abc import Sequence as List
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tspec.core.errors import ConfigError
from tspec.core.pass_costs import PassCosts
from tspec.core.proposer import WeighingProposer
from tspec.core.tree import CandidateTrees
from tspec.runtime.sequence import Sequence
from tspec.runtime.speed_up import RoundTimes


class TraceFile:
    """A file that gets a line a round; the first line says what passes cost, where that is known.

    Errors   ConfigError for a path that cannot be written
    """

    def __init__(self, path: str | Path) -> None:
        try:
            self._file = Path(path).open("w", encoding="utf-8", buffering=1)  # noqa: SIM115  closed by close()
        except OSError as error:
            raise ConfigError(
                "trace", got=f"{path} ({error.strerror})", need="a file to write", fix="Name another path."
            ) from error
        self._start_s = time.perf_counter()
        self._num_rounds = 0

    def start(self, costs: PassCosts | None) -> None:
        """Write the costs that decisions rest on."""
        if costs is not None:
            self._write({"costs": costs.as_json()})

    def round(
        self,
        sequences: List[Sequence],
        trees: CandidateTrees,
        num_out: List[int],
        times: RoundTimes,
        proposer: WeighingProposer | None,
    ) -> None:
        """Write what became of a round.

        num_out    tokens that each sequence was given
        proposer   of several sources, if it is one, after its round
        """
        sources = [] if proposer is None else list(proposer.tallies())
        self._num_rounds += 1
        line: dict[str, Any] = {
            "round": self._num_rounds,
            "at_s": round(time.perf_counter() - self._start_s, 6),
        }
        line["rows"] = [
            {
                "request": sequence.arrival,
                "context": len(sequence.tokens) - out,
                "candidates": int(count) - 1,
                **_by_source(trees, row, int(count), sources),
                "tokens": out,
            }
            for row, (sequence, count, out) in enumerate(
                zip(sequences, trees.num_nodes.tolist(), num_out, strict=True)
            )
        ]
        line["draft_s"], line["verify_s"] = round(times.draft_s, 6), round(times.verify_s, 6)
        line["total_s"] = round(times.total_s, 6)
        if proposer is not None:
            line["expected"] = asdict(proposer.last_decision)
        self._write(line)

    def close(self) -> None:
        """Write no more."""
        self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")


def _by_source(trees: CandidateTrees, row: int, count: int, sources: List[str]) -> dict[str, Any]:
    if trees.sources is None:
        return {}
    bits = trees.sources[row, 1:count]
    counts = {name: int((bits >> number & 1).sum()) for number, name in enumerate(sources)}
    return {"by_source": {name: number for name, number in counts.items() if number}}
