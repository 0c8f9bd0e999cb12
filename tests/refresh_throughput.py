"""Predict the published throughput of engines and keep the scores: ``python refresh_throughput.py``."""

import json

import serving_runs
import throughput_runs

SCORES = serving_runs.DATA / "throughput_scores.json"

if __name__ == "__main__":
    found = throughput_runs.scores(throughput_runs.predicted())
    print(found["runs"], found["predicted"], found["all"])
    SCORES.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
