"""DBOS. Its worker runs in the submitting process, so submit and drain overlap."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from common import CONC, DSN, LAT, N, report
from dbos import DBOS

DBOS(
    config={
        "name": "bench",
        "system_database_url": DSN,
        "run_admin_server": False,
        "log_level": "ERROR",
    }
)
starts = {}
lock = threading.Lock()
done = 0


@DBOS.workflow()
def noop(i: int) -> int:
    global done
    with lock:
        starts[i] = time.perf_counter()
        done += 1
    return i


DBOS.launch()
q = DBOS.register_queue("bench", worker_concurrency=CONC, polling_interval_sec=0.05)
n = min(N, 2000)
t = time.perf_counter()
with ThreadPoolExecutor(16) as ex:
    hs = list(ex.map(lambda i: q.enqueue(noop, i), range(n)))
s = time.perf_counter() - t
for h in hs:
    h.get_result()
d = time.perf_counter() - t  # submit and drain overlap: the worker is in-process
lats = []
for i in range(min(LAT, 30)):
    k = 10**6 + i
    t = time.perf_counter()
    q.enqueue(noop, k)
    while k not in starts:
        time.sleep(0.0005)
    lats.append(starts[k] - t)
report("dbos (submit+drain overlapped)", s, d, lats, n=n)
DBOS.destroy()
