"""Files, lines, functions and parameter lists stay small."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.tidy import exceptions
from tests.tidy.cpp_source import functions
from tests.tidy.sources import read, texts, written_by_hand

FILE_LINES_MAX = {".py": 400, ".pyi": 400, ".h": 300, ".cpp": 600, ".proto": 200}
FUNCTION_LINES_MAX = 70
PARAMETERS_MAX = 6
COLUMNS_MAX = 100
PROSE_COLUMNS_MAX = 120


def _python_functions(path: str) -> Iterator[tuple[str, int, int]]:
    for node in ast.walk(ast.parse(read(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = node.args
            names = [
                a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
            ]
            num_parameters = len(names) - (names[:1] in (["self"], ["cls"]))
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1, num_parameters


def _all_functions() -> Iterator[tuple[str, int, int]]:
    # A stub declares constructors of plain structs: as many parameters as the struct has fields.
    for path in written_by_hand(".py"):
        for name, num_lines, num_parameters in _python_functions(path):
            yield f"{path}:{name}", num_lines, num_parameters
    for path in written_by_hand(".cpp", ".h"):
        for function in functions(read(path)):
            yield f"{path}:{function.name}", function.num_lines, function.num_parameters


def test_files_are_short() -> None:
    long = {
        path: f"{num_lines} lines, at most {limit}"
        for suffix, limit in FILE_LINES_MAX.items()
        for path in written_by_hand(suffix)
        if (num_lines := read(path).count("\n")) > limit and path not in exceptions.LONG_FILES
    }
    assert not long


def test_functions_are_short() -> None:
    long = {
        where: f"{num_lines} lines, at most {FUNCTION_LINES_MAX}"
        for where, num_lines, _ in _all_functions()
        if num_lines > FUNCTION_LINES_MAX and where not in exceptions.LONG_FUNCTIONS
    }
    assert not long


def test_functions_take_few_parameters() -> None:
    many = {
        where: f"{num_parameters} parameters, at most {PARAMETERS_MAX}"
        for where, _, num_parameters in _all_functions()
        if num_parameters > PARAMETERS_MAX and where not in exceptions.MANY_PARAMETERS
    }
    assert not many


def _breakable_lines(path: str) -> Iterator[tuple[int, str]]:
    """A row of a table and a sample cannot be broken; everything else can."""
    in_sample = False
    for number, line in enumerate(read(path).splitlines(), start=1):
        if path.endswith(".md"):
            in_sample ^= line.startswith("```")
            if in_sample or line.startswith(("|", "    ")):
                continue
        yield number, line


def test_lines_fit() -> None:
    """100 columns of code, 120 of prose. Python and C++ are held to it by their formatters."""
    wide = [
        f"{path}:{number}: {len(line)} columns"
        for path in texts()
        if not path.endswith((".py", ".pyi", ".cpp", ".h"))
        for number, line in _breakable_lines(path)
        if len(line) > (PROSE_COLUMNS_MAX if path.endswith(".md") else COLUMNS_MAX)
    ]
    assert not wide


def test_exceptions_are_needed() -> None:
    """An entry that no longer applies is removed: the lists only shrink."""
    facts = {where: (lines, parameters) for where, lines, parameters in _all_functions()}
    stale = [
        path
        for path in exceptions.LONG_FILES
        if path not in written_by_hand(*FILE_LINES_MAX)
        or read(path).count("\n") <= FILE_LINES_MAX["." + path.rsplit(".", 1)[1]]
    ]
    stale += [w for w in exceptions.LONG_FUNCTIONS if facts.get(w, (0, 0))[0] <= FUNCTION_LINES_MAX]
    stale += [w for w in exceptions.MANY_PARAMETERS if facts.get(w, (0, 0))[1] <= PARAMETERS_MAX]
    assert not stale


_SAMPLE = """
namespace crossdock {
// void commented() {
struct Point { int x = 0; int y{3}; };
Point make(int a, std::array<int, 3> b,
           const std::function<void(int, int)>& c) {
  const char* text = "} {";
  if (a) { return {1'000, 2}; }
  auto inner = [&](int, int, int, int, int, int, int) { return 1; };
  return {};
}
class Pool {
 public:
  Pool(int a, int b) : a_(a), b_{b} {}
  bool empty() const noexcept { return true; }
};
}  // namespace crossdock
TEST(Pool, Empty) {
}
"""


@pytest.mark.parametrize(
    ("name", "num_lines", "num_parameters"),
    [("make", 7, 3), ("Pool", 1, 2), ("empty", 1, 0), ("TEST(Pool, Empty)", 2, 0)],
)
def test_cpp_functions_are_found(name: str, num_lines: int, num_parameters: int) -> None:
    found = {f.name: (f.num_lines, f.num_parameters) for f in functions(_SAMPLE)}
    assert found[name] == (num_lines, num_parameters)
    assert set(found) == {"make", "Pool", "empty", "TEST(Pool, Empty)"}
