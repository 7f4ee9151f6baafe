"""Finds function definitions in C++ without a compiler: comments and literals are blanked, then
braces are counted. A brace opens a function when a parameter list stands before it and no
function is open; what else opens a brace is a scope (namespace, type) or a value."""

from __future__ import annotations

import re
from dataclasses import dataclass

_BLANKED = re.compile(
    r"""//[^\n]*
    | /\*.*?\*/
    | R"(?P<tag>[^(\s]*)\(.*?\)(?P=tag)"
    | "(?:\\.|[^"\\\n])*"
    | '(?:\\.|[^'\\\n])+'""",
    re.DOTALL | re.VERBOSE,
)
_SCOPE = re.compile(r"\b(namespace|class|struct|union|enum|extern)\b[^()=]*$")
_CONTROL = re.compile(r"^\s*(?:else\s+)?(if|for|while|switch|catch|do|else|try|return)\b")
_NAME = re.compile(r"(~?[\w:]+|operator\s*[^\s\w(]+|operator\s*\(\))\s*\($")
_ACCESS = re.compile(r"^\s*(?:(?:public|private|protected)\s*:\s*)+")
_INITIALIZERS = re.compile(r"\)\s*(?:noexcept\s*)?:(?!:)[^;]*[\w>]\s*$", re.DOTALL)
_MACRO_TEST = re.compile(r"^(TEST|TEST_F|TEST_P|TYPED_TEST)$")


@dataclass(frozen=True)
class Function:
    """One definition: its name, the lines it spans, how many parameters it takes."""

    name: str
    num_lines: int
    num_parameters: int


def blank(text: str) -> str:
    """The text with comments, strings and preprocessor lines replaced by spaces."""

    def spaces(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    # A digit separator would read as a character literal.
    text = re.sub(r"(?<=[0-9a-fA-F])'(?=[0-9a-fA-F])", "_", text)
    text = _BLANKED.sub(spaces, text)
    return re.sub(r"^[ \t]*#(?:\\\n|[^\n])*", spaces, text, flags=re.MULTILINE)


def _closing(text: str, opening: int) -> int:
    depth = 0
    for index in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if depth == 0:
            return index
    return len(text)


def _count_parameters(parameters: str) -> int:
    depth = 0
    num_commas = 0
    # Arrows and comparisons do not occur in parameter lists; angle brackets nest.
    for character in parameters:
        depth += {"(": 1, "[": 1, "{": 1, "<": 1, ")": -1, "]": -1, "}": -1, ">": -1}.get(
            character, 0
        )
        num_commas += character == "," and depth == 0
    return num_commas + 1 if parameters.strip() not in ("", "void") else 0


def _head(statement: str) -> tuple[str, int] | None:
    """Name and parameter count, when the text before a brace declares a function."""
    if _SCOPE.search(statement) or _CONTROL.match(statement):
        return None
    for match in re.finditer(r"\(", statement):
        name = _NAME.search(statement[: match.end()])
        if name is None or statement[: name.start()].rstrip().endswith(("=", "return")):
            continue
        parameters = statement[match.end() : _closing(statement, match.start())]
        if name[1] in ("alignas", "decltype", "requires", "__attribute__", "noexcept"):
            continue
        if _MACRO_TEST.match(name[1]):
            return f"{name[1]}({', '.join(parameters.split())})".replace(",,", ","), 0
        return name[1], _count_parameters(parameters)
    return None


def _is_value(statement: str) -> bool:
    """Whether the brace after the statement belongs to it: a default argument, a member."""
    unclosed = statement.count("(") > statement.count(")")
    return unclosed or _INITIALIZERS.search(statement) is not None


def functions(text: str) -> list[Function]:
    """The outermost function definitions; lambdas count as part of the function around them."""
    code = blank(text)
    found: list[Function] = []
    # Per open brace: a function's name, parameters and first line, or whether a statement ends
    # with it.
    opened: list[tuple[str, int, int] | bool] = []
    start = 0
    for index, character in enumerate(code):
        if character == "{":
            statement = code[start:index]
            inside = any(isinstance(entry, tuple) for entry in opened)
            value = not inside and _is_value(statement)
            head = None if inside or value else _head(statement)
            if head is None:
                opened.append(not value)
            else:
                access = _ACCESS.match(statement)
                body = statement[access.end() :] if access else statement.lstrip()
                opened.append((*head, code.count("\n", 0, index - len(body))))
            start = start if value else index + 1
        elif character == "}":
            entry = opened.pop() if opened else True
            if isinstance(entry, tuple):
                name, num_parameters, first_line = entry
                num_lines = code.count("\n", 0, index) - first_line + 1
                found.append(Function(name, num_lines, num_parameters))
            start = index + 1 if entry else start
        elif character == ";":
            start = index + 1
    return found
