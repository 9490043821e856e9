"""Makes classify.json here: how scores tell pairs apart, by sentence-transformers' BinaryClassificationEvaluator and scikit-learn.

Run in an environment of its own (a few seconds; writes only here):
    pip install sentence-transformers==6.2.0 scikit-learn==1.9.1 numpy==2.4.6
    python testdata/golden/evaluate/classify.py
"""

import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
from sentence_transformers.sentence_transformer.evaluation import BinaryClassificationEvaluator as Peer
from sklearn.metrics import average_precision_score, matthews_corrcoef

HERE = Path(__file__).resolve().parent
SEED = 20261127


def case(name, scores, labels):
    scores, labels = np.asarray(scores, float), np.asarray(labels)
    accuracy, accuracy_threshold = Peer.find_best_acc_and_threshold(scores, labels, True)
    f1, precision, recall, f1_threshold = Peer.find_best_f1_and_threshold(scores, labels, True)
    return {
        "name": name,
        "scores": scores.tolist(),
        "labels": labels.astype(bool).tolist(),
        "want": {
            "ap": float(average_precision_score(labels, scores)),
            "accuracy": float(accuracy),
            "accuracy_threshold": float(accuracy_threshold),
            "f1": float(f1),
            "f1_threshold": float(f1_threshold),
            "precision": float(precision),
            "recall": float(recall),
            "mcc": float(matthews_corrcoef(labels, scores >= f1_threshold)),
            "pairs": len(scores),
        },
    }


def main():
    rng = np.random.default_rng(SEED)
    labels = rng.integers(0, 2, 80)
    noisy = 0.3 * labels + rng.normal(size=80)
    few = (rng.random(80) < 0.1).astype(int)
    cases = [
        case("noisy", noisy, labels),
        case("ties", np.round(noisy, 1), labels),
        case("few positives", rng.normal(size=80), few),
        case("many positives", rng.normal(size=80), 1 - few),
        case("apart", labels + 0.5 * rng.random(80), labels),
        case("the wrong way round", -noisy - labels, labels),
        case("one score", [0.5] * 6, [0, 1, 0, 0, 1, 0]),
        case("one score, mostly positive", [0.5] * 5, [1, 1, 0, 1, 0]),
        case("two", [1.0, np.nextafter(1.0, 2.0)], [0, 1]),
        case("next to each other", [1.0, np.nextafter(1.0, 2.0), np.nextafter(1.0, 0.0)], [1, 0, 1]),
        case("cosines of 1", [1, 1, 1, 0.2, -1], [1, 1, 0, 0, 1]),
    ]
    data = {
        "about": "sentence-transformers' BinaryClassificationEvaluator; average precision and Matthews' correlation by scikit-learn",
        "script": "testdata/golden/evaluate/classify.py",
        "seed": SEED,
        "versions": {p: version(p) for p in ["sentence-transformers", "scikit-learn", "numpy"]},
        "cases": cases,
    }
    (HERE / "classify.json").write_text(json.dumps(data, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
