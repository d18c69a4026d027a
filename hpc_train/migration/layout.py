"""Code as it is shown and written: a line where it fits, else an argument a line; texts in double quotes. Pure."""

from __future__ import annotations

import ast
import io
import tokenize

_SHORT = 24
_Pairs = list[tuple[str, ast.expr]]


def laid_out(node: ast.AST, width: int) -> list[str]:
    """The lines of a statement or an expression, of `width` characters at most where arguments can be moved.

    A statement that has others in it is laid out by ast.unparse.
    """
    value, head = _value_of(node)
    if value is None:
        return quoted(ast.unparse(node)).split("\n")
    return quoted("\n".join(_rows(value, head, "", "", width))).split("\n")


def quoted(code: str) -> str:
    """`code` with texts in double quotes, where that needs no escapes."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
    except (tokenize.TokenError, SyntaxError, IndentationError):
        return code
    lines = code.split("\n")
    for token in reversed(tokens):
        text = token.string
        if token.type != tokenize.STRING or token.start[0] != token.end[0] or '"' in text or "\\" in text:
            continue
        prefix, quote, rest = text.partition("'")
        if quote and not rest.startswith("''") and prefix.isalpha() | (prefix == ""):
            row = token.start[0] - 1
            lines[row] = lines[row][: token.start[1]] + f'{prefix}"{rest[:-1]}"' + lines[row][token.end[1] :]
    return "\n".join(lines)


def _value_of(node: ast.AST) -> tuple[ast.expr | None, str]:
    """The expression that a statement ends with, and what is before it."""
    if isinstance(node, ast.expr):
        return node, ""
    if isinstance(node, ast.Expr):
        return node.value, ""
    if isinstance(node, ast.Assign):
        return node.value, "".join(f"{ast.unparse(target)} = " for target in node.targets)
    if isinstance(node, ast.Return) and node.value is not None:
        return node.value, "return "
    return None, ""


def _rows(node: ast.expr, before: str, after: str, indent: str, width: int) -> list[str]:
    whole = f"{indent}{before}{ast.unparse(node)}{after}"
    if len(whole) <= width and "\n" not in whole:
        return [whole]
    if isinstance(node, ast.Lambda):
        head = ast.unparse(ast.Lambda(node.args, ast.Constant(0))).removesuffix("0")
        return _rows(node.body, before + head, after, indent, width)
    if len(chain := _chain(node)) > 2:
        first, *methods = chain
        rows = [f"{indent}{before}(", *_rows(first, "", "", f"{indent}    ", width)]
        for method in methods:
            rows += _rows(method, ".", "", f"{indent}    ", width)
        return [*rows, f"{indent}){after}"]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Call) and not node.keywords:
        given = ", ".join(map(ast.unparse, node.args))
        if len(given) <= _SHORT:  # a layer that is called
            return _rows(node.func, before, f"({given}){after}", indent, width)
    parts = _parts(node)
    if parts is None:
        return [whole]
    begin, end, pairs = parts
    rows = [f"{indent}{before}{begin}"]
    for name, value in pairs:
        rows += _rows(value, name, ",", f"{indent}    ", width)
    return [*rows, f"{indent}{end}{after}"]


def _chain(node: ast.expr) -> list[ast.expr]:
    """`first(…).second(…).third(…)` as its calls, each but the first without what it is called on."""
    found: list[ast.expr] = []
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call):
        found.append(ast.Call(ast.Name(node.func.attr), node.args, node.keywords))
        node = node.func.value
    return [node, *reversed(found)]


def _parts(node: ast.expr) -> tuple[str, str, _Pairs] | None:
    """How an expression begins and ends, and what is between, each with what is before it; None: it is one piece."""
    if isinstance(node, ast.Call) and (node.args or node.keywords):
        pairs: _Pairs = [("", arg) for arg in node.args]
        pairs += [(f"{keyword.arg}=" if keyword.arg else "**", keyword.value) for keyword in node.keywords]
        return f"{ast.unparse(node.func)}(", ")", pairs
    if isinstance(node, ast.List) and node.elts:
        return "[", "]", [("", item) for item in node.elts]
    if isinstance(node, ast.Tuple) and node.elts:
        return "(", ")", [("", item) for item in node.elts]
    if isinstance(node, ast.Dict) and node.values:
        names = ["**" if key is None else f"{ast.unparse(key)}: " for key in node.keys]
        return "{", "}", list(zip(names, node.values, strict=True))
    return None
