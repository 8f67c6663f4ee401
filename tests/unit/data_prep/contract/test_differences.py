"""What differs between two records, in words."""

import pytest

from data_prep.contract.differences import differences
from data_prep.contract.manifest import InputEntry, InputSummary


def summary(*given: tuple[str, int, str, float]) -> dict[str, object]:
    entries = tuple(InputEntry(path, files, 10, sha, weight) for path, files, sha, weight in given)
    sha256 = "".join(f"{entry.sha256}{entry.weight}" for entry in entries)
    return InputSummary(sum(e.files for e in entries), 10, sha256, entries).to_json()


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ([("x/", 1, "a", 1.0), ("b/", 2, "b", 1.0)], []),  # only a name
        ([("a/", 1, "a", 1.0), ("b/", 2, "b", 2.0)], ["inputs: the weight of b/"]),
        (
            [("a/", 1, "a", 1.0), ("b/", 3, "c", 1.0)],
            ["inputs: 3 files there, 4 now (in b/ 2 there, 3 now)"],
        ),
        ([("a/", 3, "x", 1.0)], ["inputs: other content"]),
    ],
)
def test_other_inputs_are_named_by_the_path_they_lie_in(
    now: list[tuple[str, int, str, float]], words: list[str]
) -> None:
    there = summary(("a/", 1, "a", 1.0), ("b/", 2, "b", 1.0))
    assert differences({"inputs": there}, {"inputs": summary(*now)}) == words


def test_differences_are_said_in_words() -> None:
    a, b = ("a/", 1, "a", 1.0), ("b/", 2, "b", 1.0)
    there = {"parameters": {"seed": 0, "pairs": "x"}, "inputs": summary(a, b)}
    assert differences(there, there) == []
    now = {"parameters": {"seed": 1, "pairs": "x"}, "inputs": summary(a, ("c/", 2, "c", 1.0))}
    assert differences(there, now) == [
        "inputs: the content of c/",
        "parameters seed: 0 there, 1 now",
    ]
    assert differences({"inputs": []}, now) == [
        "inputs: recorded by another version",
        "parameters: None there, {'seed': 1, 'pairs': 'x'} now",
    ]
