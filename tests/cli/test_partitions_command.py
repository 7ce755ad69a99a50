"""`db partitions`: how many there are, and more of them."""

from __future__ import annotations

from support.database import partitions


async def test_the_number_is_shown_raised_and_never_lowered(ff, engine):
    number = partitions()
    assert (await ff("db", "partitions")).line["partitions"] == number
    await engine.submit()
    line = (await ff("db", "partitions", "--to", str(number + 7))).line
    assert (line["partitions"], line["minted"]) == (number + 7, number)
    table = (await ff("db", "partitions", "-o", "table")).out.splitlines()
    assert table[0] == f"partitions: {number + 7}"
    assert table[1].startswith(f"used by new executions: {number}")
    assert table[2:] == [f"used by keys: {number}"]
    refused = await ff("db", "partitions", "--to", str(number))
    assert refused.code == 2
    assert "can only be raised" in " ".join(refused.err.split())


async def test_keys_need_a_number(ff):
    found = await ff("db", "partitions", "--keys")
    assert found.code == 2
    assert "--to N" in found.err
