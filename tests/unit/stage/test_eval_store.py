import os
import signal
from pathlib import Path
from typing import Any

import pytest

from xpress_exp.metric import EvalRecord
from xpress_exp.run_dir import ArtefactError, read_json
from xpress_exp.stage.eval_store import EvalStore, Termination, missing_rounds
from xpress_exp.types import SampleTrace

FACTS: dict[str, Any] = {"run": "r", "device": "cpu", "commit": "aaa", "dirty": False}


def record(prompt_id: str, temperature: float = 0.0) -> EvalRecord:
    trace = SampleTrace(prompt_id, "math", (5,), (), 3, 1.0, 0.0, (), "length")
    return EvalRecord(prompt_id, "math", temperature, 0, 0, trace, trace)


@pytest.fixture
def store(tmp_path: Path) -> EvalStore:
    return EvalStore(tmp_path / "run" / "eval" / "abc", "heldout")


def test_records_accumulate_until_closed(store: EvalStore) -> None:
    store.claim(FACTS)
    assert store.recorded() == set()
    store.append(record("a"))
    store.append(record("a", 1.0))
    assert store.recorded() == {("a", 0.0), ("a", 1.0)}
    assert not store.is_done("weights")
    store.close("weights")
    assert store.is_done("weights")
    assert read_json(store.folder.path / "eval.done.json")["num_records"] == 2


def test_an_evaluation_of_other_weights_is_refused(store: EvalStore) -> None:
    store.claim(FACTS)
    store.close("old weights")
    with pytest.raises(ArtefactError, match="other weights"):
        store.is_done("new weights")


def test_resuming_names_what_changed(store: EvalStore) -> None:
    store.claim({**FACTS, "device": "gpu"})
    store.claim(FACTS)  # nothing was recorded yet
    store.append(record("a"))
    with pytest.raises(ArtefactError, match="device 'cpu' -> 'gpu'"):
        store.claim({**FACTS, "device": "gpu"})


def test_resuming_keeps_every_commit(store: EvalStore) -> None:
    store.claim(FACTS)
    store.append(record("a"))
    store.claim({**FACTS, "commit": "bbb", "dirty": True})
    store.claim({**FACTS, "commit": "aaa"})
    stored = read_json(store.variant_file)
    assert (stored["commit"], stored["dirty"]) == ("aaa+bbb", True)


def test_missing_rounds_by_hand() -> None:
    complete = {(prompt, t) for prompt in "ab" for t in (0.0, 1.0)}
    assert missing_rounds([complete, complete], ["a", "b"], [0.0, 1.0]) == []
    partial = {("a", 0.0)}
    assert missing_rounds([partial, complete, set()], ["a", "b"], [0.0, 1.0]) == [
        (0, 0.0, [2]),
        (1, 0.0, [0, 2]),
        (0, 1.0, [0, 2]),
        (1, 1.0, [0, 2]),
    ]


def test_sigterm_waits_for_the_records() -> None:
    before, written = signal.getsignal(signal.SIGTERM), []
    termination = Termination()

    def write_two() -> None:
        with termination.installed(), termination.deferred():
            written.append("first")
            os.kill(os.getpid(), signal.SIGTERM)
            written.append("second")

    with pytest.raises(SystemExit) as stop:
        write_two()
    assert stop.value.code == 143
    assert written == ["first", "second"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_sigterm_between_records_acts_at_once() -> None:
    termination = Termination()

    def decode() -> None:
        with termination.installed():
            os.kill(os.getpid(), signal.SIGTERM)
            pytest.fail("decoding went on")

    with pytest.raises(SystemExit):
        decode()
