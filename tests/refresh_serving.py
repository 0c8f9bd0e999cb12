"""Predict the public serving runs of one half or both again and keep the scores: ``python refresh_serving.py [fit] ["held out"]``."""

import sys

import serving_runs

from perfmodel.core.files import read_json

SCORES = serving_runs.DATA / "serving_scores.json"

if __name__ == "__main__":
    import json

    found = read_json(SCORES) if SCORES.exists() else {}
    for half in sys.argv[1:] or (serving_runs.FIT, serving_runs.HELD):
        found[half] = serving_runs.scores(half)
        print(half, found[half]["all"], found[half]["missing"])
    SCORES.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
