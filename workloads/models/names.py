"""What the tables and features of click models are called."""

from __future__ import annotations

from collections.abc import Sequence


def feature_name(table: int) -> str:
    """The feature that looks up table number `table` of a workload that names none."""
    return f"feature_{table}"


def tables_and_features(num_tables: int, features: Sequence[str] | None) -> list[tuple[str, str]]:
    """The name of each table and of its one feature: (feature, feature), or numbered ones without names."""
    if features is None:
        return [(f"table_{table}", feature_name(table)) for table in range(num_tables)]
    assert len(features) == num_tables, f"{num_tables} tables, features {list(features)}"
    return [(feature, feature) for feature in features]
