"""A tuner of numbers with the real store: `python -m support.fake_tuner DEVICE FIRST LAST SECONDS` tunes ops of it.

Prints the number of each op as it starts to be measured, and again with "stored" when it is stored.
"""

import sys
import time
from dataclasses import dataclass

from autotune.kernels import tune
from tspec.core.errors import ContractError
from tspec.kernels.tuned_store import TunedStore, load_tuned, tuned_file

SPACE_SIZE = 4


@dataclass(frozen=True, slots=True)
class Config:
    """A configuration."""

    number: int


class FakeTuner:
    """Ops are numbers from `first` to `last`; the best configuration of each is the remainder by SPACE_SIZE."""

    def __init__(self, device: str, first: int, last: int, seconds: float = 0.0) -> None:
        self.device = device
        self.ops = [Op(number) for number in range(first, last)]
        self.seconds = seconds
        self.measured: list[int] = []

    def measure(self, op: "Op", config: Config) -> tuple[float, ...]:
        if op.number not in self.measured:
            self.measured.append(op.number)
            print(op.number, flush=True)
        time.sleep(self.seconds)
        return (1.0 if config.number == op.number % SPACE_SIZE else 2.0,)

    def has(self, op: "Op") -> bool:
        return self.store().lookup("op", "float32", n=op.number + 1) is not None

    def put(self, op: "Op", config: Config) -> None:
        self.store().put("op", "float32", config, n=op.number + 1)
        print(op.number, "stored", flush=True)

    def space(self, op: "Op") -> list[Config]:
        return [Config(number) for number in range(SPACE_SIZE)]

    def default(self, op: "Op") -> Config:
        return Config(0)

    def store(self) -> TunedStore[Config]:
        return load_tuned(tuned_file(), self.device, "none", lambda key, numbers: _parse(**numbers))


@dataclass(frozen=True, slots=True)
class Op:
    """An op of a FakeTuner."""

    number: int

    @property
    def op(self) -> str:
        return "even" if self.number % 2 == 0 else "odd"


def _parse(number: int) -> Config:
    if not 0 <= number < SPACE_SIZE:
        raise ContractError("number", got=number, need="one in the space", fix="Tune it again.")
    return Config(number)


if __name__ == "__main__":
    device, first, last, seconds = sys.argv[1:]
    for _ in tune(FakeTuner(device, int(first), int(last), float(seconds)), budget_s=600):
        pass
