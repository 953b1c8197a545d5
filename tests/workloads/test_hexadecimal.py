"""Hexadecimal cells against Python's own conversion."""

import random

import pyarrow as pa
import pytest

from workloads.hexadecimal import parse_hexadecimal


def cells(num: int, lengths: tuple[int, ...], seed: int = 0) -> list[str]:
    generator = random.Random(seed)
    return [
        "".join(generator.choices("0123456789abcdefABCDEF", k=generator.choice(lengths))) for _ in range(num)
    ]


@pytest.mark.parametrize("lengths", [(8,), (0, 8), (0,), tuple(range(9)), (1, 7)])
@pytest.mark.parametrize("num", [0, 1, 1000])
def test_equals_int(lengths: tuple[int, ...], num: int):
    texts = [*cells(num, lengths), *(["ffffffff", "00000000"] if num and 8 in lengths else [])]
    values, is_blank = parse_hexadecimal(pa.array(texts, pa.string()))
    assert values.tolist() == [int(text or "0", 16) for text in texts]
    assert is_blank.tolist() == [text == "" for text in texts]


def test_a_slice_of_a_column():
    texts = cells(100, (0, 8))
    values, is_blank = parse_hexadecimal(pa.array(texts)[13:77])
    assert values.tolist() == [int(text or "0", 16) for text in texts[13:77]]
    assert is_blank.tolist() == [text == "" for text in texts[13:77]]


@pytest.mark.parametrize(
    "cell", ["0000000g", "123456789", "-1", " 1", "0x1f", "G", "\uff11\uff12", "@0000000", "`"]
)
def test_other_cells(cell: str):
    with pytest.raises(ValueError, match="a cell"):
        parse_hexadecimal(pa.array(["01234567", cell, ""]))
