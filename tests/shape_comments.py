"""Hold a notebook's shape comments to the tensors they stand beside.

While the tests run, or outputs are recorded, the kernel calls ``register``. Then a
statement that ends in ``# (B, T, C)`` fails if what it assigns or returns has another
shape: numbers must be equal, and within one pass through a function, or a cell, a letter
stands for one size. (B, and what follows it, may be missing at the front.)
"""

import ast
import builtins
import io
import re
import sys
import tokenize

from IPython import get_ipython

from plot_data import running

COMMENT = re.compile(r"# \(([^()]+)\)( each)?")
sizes = {}  # {function: [the last line that was checked, {letter: size}]}


def size_of(said: str, known: dict):
    """The number that a comment says, or None for a letter not seen before."""
    product = re.sub(r"(?<=\d)(?=[A-Za-z])", "*", said.replace("·", "*"))
    if re.fullmatch(r"\w+", product) and product.isidentifier():
        return known.get(product)
    try:
        return eval(product, {}, known)
    except (NameError, SyntaxError):
        return None


def agrees(shape, said: list, known: dict) -> bool:
    if said[:1] == ["B"]:
        said = said[-max(1, len(shape)) :]
    if len(said) != len(shape):
        return False
    for name, size in zip(said, shape, strict=True):
        wanted = size_of(name, known)
        if wanted is None and name.isidentifier():
            known[name] = size
        elif wanted is not None and wanted != size:
            return False
    return True


def checked(value, comment: str, line: int):
    """The value, if its shape is what the comment beside it says."""
    code = sys._getframe(1).f_code
    state = sizes.setdefault((code.co_filename, code.co_qualname), [0, {}])
    if line <= state[0]:  # called again, or another turn of a loop
        state[1] = {}
    state[0] = line
    names, each = COMMENT.fullmatch(comment).groups()
    several = each and isinstance(value, (tuple, list))
    for tensor in value if several else [value]:
        if hasattr(tensor, "shape"):
            said = [name.strip() for name in names.split(",")]
            right = agrees(tuple(tensor.shape), said, state[1])
            assert right, f"line {line} says {comment}, it is {tuple(tensor.shape)}"
    return value


class Check(ast.NodeTransformer):
    """Send each value with a shape comment through ``checked``."""

    def visit(self, node):
        if isinstance(node, ast.Module):
            self.comments = {}
            if "check" in get_ipython().user_ns:  # exercises, told by their bytecode
                return node
            source = io.StringIO(running[-1])
            for token in tokenize.generate_tokens(source.readline):
                if token.type == tokenize.COMMENT and COMMENT.fullmatch(token.string):
                    self.comments[token.start[0]] = token.string
        comment = self.comments.get(getattr(node, "end_lineno", None))
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.Return)) and comment:
            call = f"_shape_checked_(None, {comment!r}, {node.end_lineno})"
            call = ast.parse(call, mode="eval").body
            call.args[0] = node.value
            node.value = ast.copy_location(call, node.value)
            ast.fix_missing_locations(node)
        return self.generic_visit(node)


def register() -> None:
    builtins._shape_checked_ = checked
    get_ipython().ast_transformers.append(Check())
