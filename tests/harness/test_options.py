"""Settings and worker counts as the user types them."""

from __future__ import annotations

import pytest

from harness.options import Training, parse_settings, parse_worker_counts

WORKLOAD_KEYS = ["num_rows", "batch_size"]


def test_settings_go_to_their_owners() -> None:
    pairs = ["num_rows=1e3", "replicas=2", "sparse_lr=0.5", "sparse_optimizer=sgd", "micro_batches=auto"]
    settings = parse_settings(pairs, WORKLOAD_KEYS)
    assert settings.workload == {"num_rows": "1e3"}
    assert settings.method == {"replicas": 2, "micro_batches": "auto"}
    assert settings.training == Training(sparse_optimizer="sgd", sparse_lr=0.5)


def test_values_may_hold_equals_signs_and_cuts_are_lists() -> None:
    settings = parse_settings(["batch_size=a=b", "micro_batches=1,2, 1"], WORKLOAD_KEYS)
    assert settings.workload == {"batch_size": "a=b"}
    assert settings.method == {"micro_batches": [1, 2, 1]}


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("num_row=5", "unknown setting 'num_row': did you mean 'num_rows'"),
        ("replica=2", "did you mean 'replicas'"),
        ("zzz=2", "unknown setting 'zzz': known: autocast, batch_size, "),
        ("replicas", "needs key=value, got 'replicas'"),
        ("replicas=", "needs key=value"),
        ("replicas=0", "replicas must be a whole number of at least 1, got '0'"),
        ("replicas=-1", "replicas must be a whole number"),
        ("micro_batches=1,x", "micro_batches must be a whole number of at least 1, got 'x'"),
        ("sparse_lr=fast", "sparse_lr must be a number of at least 0, got 'fast'"),
        ("sparse_lr=nan", "sparse_lr must be a number"),
        ("dtype=float16", "dtype cannot be 'float16': did you mean 'float"),
        ("sparse_optimizer=adagrd", "did you mean 'adagrad'"),
    ],
)
def test_bad_settings_name_the_way_out(pair: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_settings([pair], WORKLOAD_KEYS)


def test_a_setting_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="replicas is given twice"):
        parse_settings(["replicas=1", "replicas=2"], [])


def test_worker_counts() -> None:
    assert parse_worker_counts("4,1, 2") == (4, 1, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0", "at least 1, got 0"),
        ("2,-1", "at least 1, got -1"),
        ("two", "whole numbers, such as 1,2,4, got 'two'"),
        ("1.5", "whole numbers"),
        ("", "whole numbers"),
        ("2,2", "must differ"),
    ],
)
def test_bad_worker_counts(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_worker_counts(text)
