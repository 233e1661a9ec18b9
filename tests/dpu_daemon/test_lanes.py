"""A lease of a real daemon and helper with as many lanes as its jobs are of use to."""

from __future__ import annotations

from pathlib import Path

from ..support.cluster import TIMEOUT
from ..support.clusters import Make, path_array, until_read
from ..support.processes import until

WHOLE = {"profile": "7g.40gb"}
JOBS = 12


def test_seven_jobs_of_fourteen_percent_run_at_once_on_a_whole_gpu(make_cluster: Make, tmp_path: Path) -> None:
    cluster = make_cluster({"ada": WHOLE}, leasing={"max_lanes": 8, "landing_bytes": 131_072, "result_bytes": 131_072})
    cluster.start_helper(slice_bytes=1 << 20)
    paths = [tmp_path / str(n) for n in range(JOBS)]
    with cluster.connect("ada", slots=JOBS) as ada:
        pending = [ada.begin("held", path_array(path)) for path in paths]
        until(lambda: sum(path.exists() for path in paths) == 7)
        until_read(cluster, ada)
        assert [path.exists() for path in paths] == [True] * 7 + [False] * 5  # the eighth lane holds the eighth job
        for path in paths[:7]:
            path.unlink()
        until(lambda: sum(path.exists() for path in paths) == 5)
        for path in paths[7:]:
            path.unlink()
        workers = {int(each.result(TIMEOUT).array[0]) for each in pending}
    assert 7 <= len(workers) <= 8
