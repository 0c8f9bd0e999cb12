"""Predict the published throughput of engines and keep the scores: ``python -m tools.refresh.throughput``. The first score stays."""

import json

from perfmodel.core.files import read_json
from tools.scores import DATA, throughput_runs

SCORES = DATA / "throughput_scores.json"

if __name__ == "__main__":
    before = read_json(SCORES)
    found = throughput_runs.scores(throughput_runs.predicted())
    found["first"] = before.get("first", before["all"])
    print(found["runs"], found["predicted"], found["all"])
    SCORES.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
