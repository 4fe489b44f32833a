"""Text of generated C: escaping, comments, and lines within a reader's screen."""

from __future__ import annotations

COLUMNS = 100
CONTINUATION = 8
"""Extra indentation of a continued line."""

_OPERATORS = (" ? ", " : ", " && ", " || ", " = ", " + ", " - ", " * ")


def wrap(text: str) -> str:
    """Break lines of C longer than 100 columns behind a comma, else in front of an operator.

    Preprocessor lines stay as they are, and nothing is broken inside a string literal. What a line
    of a block comment has too much goes in front of the comment's next line.
    """
    made: list[str] = []
    carried = ""
    for line in text.split("\n"):
        if carried:
            line, carried = _joined(line, carried, made), ""
        if len(line) <= COLUMNS or line.startswith("#") or line.endswith("\\"):
            made.append(line)
        elif line.lstrip().startswith(("/*", "* ")):
            *whole, last = _wrap_comment(line)
            made += whole
            carried = "" if last.endswith("*/") else last
            if not carried:
                made.append(last)
        else:
            made += _wrap_code(line)
    return "\n".join(made)


def _joined(line: str, carried: str, made: list[str]) -> str:
    """``line`` behind what the comment line before it had too much, where its text runs on."""
    body = line.lstrip()
    if body.startswith("* ") and not body.startswith(("*  ", "* -")):
        return f"{carried.rstrip()} {body[2:]}"
    made.append(carried)
    return line


def _wrap_code(line: str) -> list[str]:
    code, comment = _trailing_comment(line)
    indent = " " * (len(code) - len(code.lstrip()))
    made = [indent + comment] if comment else []
    while len(code) > COLUMNS:
        at = _break(code)
        if at is None:
            break
        made.append(code[:at].rstrip())
        code = indent + " " * CONTINUATION + code[at:].lstrip()
    return [*made, code]


def _wrap_comment(line: str) -> list[str]:
    """A line of a block comment, continued under its first word."""
    body = line.lstrip()
    indent = " " * (len(line) - len(body))
    own = body.startswith("/*")
    lead = indent + (" * " if own else "* ")
    made: list[str] = []
    while len(line) > COLUMNS:
        at = line.rfind(" ", len(lead) + 1, COLUMNS + 1)
        if line[at:] == " */":  # never alone on a line
            at = line.rfind(" ", len(lead) + 1, at)
        if at < 0:
            break
        made.append(line[:at].rstrip())
        line = lead + line[at:].lstrip()
    return [*made, line]


def _trailing_comment(line: str) -> tuple[str, str]:
    """(code, comment) of a line that ends in a comment."""
    at = line.rfind("/*")
    if line.endswith("*/") and at > 0 and line[:at].strip() and not _in_string(line, at):
        return line[:at].rstrip(), line[at:]
    return line, ""


def _break(line: str) -> int | None:
    """Where to break: behind the last comma that fits, one between arguments of the outermost
    call if there is one, else before the last operator, else behind a bracket.
    """
    start = len(line) - len(line.lstrip()) + 20
    commas = _positions(line, ", ", start)
    if commas:
        depth = {at: line.count("(", 0, at) - line.count(")", 0, at) for at in commas}
        least = min(depth.values())
        return max(at for at in commas if depth[at] == least) + 1
    operators = [at for o in _OPERATORS for at in _positions(line, o, start)]
    brackets = [at + 1 for at in _positions(line, "(", start)]
    return max(operators, default=None) or max(brackets, default=None)


def _positions(line: str, text: str, start: int) -> list[int]:
    found: list[int] = []
    at = line.find(text, start, COLUMNS)
    while at >= 0:
        if not _in_string(line, at):
            found.append(at)
        at = line.find(text, at + 1, COLUMNS)
    return found


def _in_string(line: str, at: int) -> bool:
    """Whether position ``at`` is inside a string literal of the line."""
    inside = False
    i = 0
    while i < at:
        if line[i] == "\\" and inside:
            i += 1
        elif line[i] == '"':
            inside = not inside
        i += 1
    return inside


def c_escape(text: str) -> str:
    """``text`` for a C string literal: printable ASCII, all else as octal escapes of its UTF-8
    bytes.
    """
    out = []
    for byte in text.encode("utf-8", "surrogatepass"):
        char = chr(byte)
        plain = 32 <= byte < 127 and char not in '"\\?'
        out.append(char if plain else f"\\{byte:03o}")
    return "".join(out)


def comment_safe(text: str) -> str:
    """``text`` for a C comment: one line of printable ASCII that cannot end the comment or continue
    the line.
    """
    flat = "".join(c if 32 <= ord(c) < 127 else "?" for c in text)
    return flat.replace("*/", "* /").replace("/*", "/ *").replace("\\", "/").replace("??", "? ?")
