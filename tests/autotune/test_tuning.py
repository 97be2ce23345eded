"""The loop over ops: what is finished is in the store whatever happens, and is not measured twice.

Run: pytest tests/autotune/test_tuning.py
"""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from support.fake_tuner import SPACE_SIZE, Config, FakeTuner
from support.sources import ROOT

from autotune.kernels import tune
from tspec.core.errors import ConfigError
from tspec.kernels import tuned_store
from tspec.kernels.tuned_store import FOLDER_VARIABLE, tuned_file

NUM_KILLS = 20
MANY = 10_000
"""More ops than a tuner has time for before it is killed."""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    tuned_store._log_once.cache_clear()
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    return tmp_path


def stored(device="here"):
    """Number of each op that has an entry, and of its configuration."""
    entries = FakeTuner(device, 0, 0).store().entries
    return {dict(key.shape)["n"] - 1: config.number for key, config in entries.items()}


def test_the_best_of_each_op_is_stored_and_a_second_run_measures_nothing():
    first, second = FakeTuner("here", 0, 6), FakeTuner("here", 0, 6)
    found = dict(tune(first, budget_s=60))
    assert [each.config.number for each in found.values()] == [number % SPACE_SIZE for number in range(6)]
    assert stored() == {number: number % SPACE_SIZE for number in range(6)}
    assert list(dict(tune(second, budget_s=60)).values()) == [None] * 6
    assert second.measured == []


def test_a_default_that_nothing_beats_is_stored_too():
    list(tune(FakeTuner("here", 0, 1), budget_s=60))
    assert stored() == {0: 0}


def test_again_measures_what_is_stored():
    list(tune(FakeTuner("here", 0, 3), budget_s=60))
    tuner = FakeTuner("here", 0, 3)
    tuner.store().put("op", "float32", Config(3), n=2)
    list(tune(tuner, budget_s=60, again=True))
    assert tuner.measured == [0, 1, 2]
    assert stored() == {0: 0, 1: 1, 2: 2}


def test_one_op_alone():
    tuner = FakeTuner("here", 0, 4)
    list(tune(tuner, budget_s=60, only="odd"))
    assert tuner.measured == [1, 3]
    with pytest.raises(ConfigError, match="--op: got conv, need one of even, odd"):
        list(tune(tuner, budget_s=60, only="conv"))


def test_a_budget_that_is_over_leaves_the_other_ops_for_the_next_run():
    found = list(tune(FakeTuner("here", 0, 50, seconds=0.004), budget_s=1.0))
    sure = {number for number, (_, each) in enumerate(found) if each.is_sure}
    assert len(sure) < 50
    assert stored().keys() == sure
    rest = FakeTuner("here", 0, 50)
    list(tune(rest, budget_s=600))
    assert rest.measured == sorted(set(range(50)) - sure)


def test_an_entry_that_is_not_legal_is_measured_again():
    list(tune(FakeTuner("here", 0, 3), budget_s=60))
    content = json.loads(tuned_file().read_text())
    content["entries"][1]["config"]["number"] = SPACE_SIZE
    tuned_file().write_text(json.dumps(content))
    tuner = FakeTuner("here", 0, 3)
    list(tune(tuner, budget_s=60))
    assert tuner.measured == [1]
    assert stored() == {0: 0, 1: 1, 2: 2}


def start(device, first, last, seconds=0.0):
    command = [sys.executable, "-m", "support.fake_tuner", device, str(first), str(last), str(seconds)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests")))}
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)


def test_a_tuner_that_is_killed_at_any_moment_keeps_what_it_finished_and_goes_on_from_there():
    chance = random.Random(0)
    finished: set[int] = set()
    for _ in range(NUM_KILLS):
        tuner = start("here", 0, MANY)
        lines = [tuner.stdout.readline()]
        time.sleep(chance.uniform(0, 0.2))
        tuner.send_signal(signal.SIGKILL)
        lines += tuner.communicate(timeout=60)[0].splitlines(keepends=True)
        started = [int(line) for line in lines if line.strip().isdigit()]
        assert not set(started) & finished, "measured twice"
        finished |= {int(line.split()[0]) for line in lines if line.endswith("stored\n")}
        assert finished <= stored().keys()
        finished = set(stored())
    assert len(finished) > NUM_KILLS
    assert not list(tuned_file().parent.glob("*.damaged"))


def test_two_tuners_at_once_lose_nothing():
    tuners = [start("first", 0, 60), start("second", 0, 60), start("first", 30, 90)]
    for tuner in tuners:
        tuner.communicate(timeout=120)
        assert tuner.returncode == 0
    for device, last in (("first", 90), ("second", 60)):
        assert stored(device) == {number: number % SPACE_SIZE for number in range(last)}
