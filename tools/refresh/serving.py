"""Predict the public serving runs of one half or both again and keep the scores: ``python -m tools.refresh.serving [fit] ["held out"]``."""

import sys

from perfmodel.core.files import read_json
from tools.scores import DATA, serving_runs

SCORES = DATA / "serving_scores.json"

if __name__ == "__main__":
    import json

    found = read_json(SCORES) if SCORES.exists() else {}
    for half in sys.argv[1:] or (serving_runs.FIT, serving_runs.HELD):
        found[half] = serving_runs.scores(half)
        print(half, found[half]["all"], found[half]["missing"])
    SCORES.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
