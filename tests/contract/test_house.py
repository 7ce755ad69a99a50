"""docs/internals/house.md lists exactly the SQL functions that are longer than 80 lines."""

from __future__ import annotations

import re

from .sources import ROOT, SQL

MOST = 80
BODY = re.compile(r"^as \$\$\n(.*?)^\$\$;", re.DOTALL | re.MULTILINE)
ROW = re.compile(r"^\| `(\w+)` \| (.+) \|$", re.MULTILINE)


def test_every_long_sql_function_has_its_reason():
    files = [*(SQL / "functions").rglob("*.sql"), *(SQL / "shared").rglob("*.sql")]
    assert len(files) > 400
    long = {
        file.stem
        for file in files
        for body in BODY.findall(file.read_text(encoding="utf-8"))
        if body.count("\n") > MOST
    }
    page = (ROOT / "docs" / "internals" / "house.md").read_text(encoding="utf-8")
    listed = dict(ROW.findall(page.split("## SQL functions longer than 80 lines")[1]))
    assert set(listed) - long == set(), "shorter now: take them off the page"
    assert long - set(listed) == set(), "longer than 80 lines: split them, or say why not"
