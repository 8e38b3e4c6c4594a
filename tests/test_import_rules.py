"""Who may import whom: the walls between the two rooms, Triton's edge, and the client.

`speculation` and `decoder` run in two processes and share only the nouns; Triton's bindings are
touched in three files; a client of a server needs neither torch nor ONNX Runtime.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
# Folder -> the package it is installed as.
PACKAGES = {
    "backend/specdec": "specdec",
    "export": "specdec.export",
    "client": "specdec.client",
    "model_repository": "model_repository",
}
PB_UTILS = "triton_python_backend_utils"
PB_UTILS_USERS = {"backend/model.py", "backend/specdec/speculation/triton_io.py"}
PB_UTILS_ALLOWED = PB_UTILS_USERS | {"model_repository/speculative/1/model.py"}
NOUNS = ("types", "errors", "config", "artifact", "wire", "wire_head", "noise", "sampling")
HEAVY = ("torch", "onnxruntime", "onnx", "transformers", "tensorrt", "tensorrt_rtx")


NONE: Mapping[str, tuple[str, ...]] = MappingProxyType({})


class Import(NamedTuple):
    module: str
    line: int
    lazy: bool  # inside a function, or for type checkers only


class Rule(NamedTuple):
    folder: str
    forbidden: tuple[str, ...]
    allowed: tuple[str, ...] = ()  # exceptions below `forbidden`
    lazily: Mapping[str, tuple[str, ...]] = NONE  # file -> more of them, inside functions only
    in_file: Mapping[str, tuple[str, ...]] = NONE  # file -> more of them


RULES = {
    "speculation knows no decoder": Rule(
        "backend/specdec/speculation",
        ("specdec.decoder", "specdec.launcher", "specdec.export", "specdec.client", *HEAVY),
    ),
    "drafters know no decoder": Rule(
        "backend/specdec/drafters",
        ("specdec.decoder", "specdec.speculation", "specdec.launcher", PB_UTILS, *HEAVY),
    ),
    "the decoder knows no speculation": Rule(
        "backend/specdec/decoder",
        (
            "specdec.speculation",
            "specdec.drafters",
            "specdec.launcher",
            "specdec.export",
            "specdec.client",
            PB_UTILS,
            "transformers",
            "tokenizers",
        ),
    ),
    "the launcher knows neither room": Rule(
        "backend/specdec/launcher",
        ("specdec.speculation", "specdec.decoder", "specdec.drafters", PB_UTILS, *HEAVY),
    ),
    "the client knows the contract and not the server": Rule(
        "client",
        ("specdec", PB_UTILS, *HEAVY),
        allowed=("specdec.errors", "specdec.client", "specdec.artifact", "specdec.config"),
        lazily={
            "client/serve_command.py": ("specdec.launcher",),
            "client/cli.py": ("specdec.export", "specdec.launcher"),
            "client/bench/bare.py": ("specdec.speculation.tokenization",),
            "client/costs_command.py": ("specdec.decoder.decoder",),
            "client/explain_command.py": (
                "specdec.speculation.forecast",
                "specdec.speculation.state",
            ),
        },
        in_file={
            "client/bench/bare.py": ("specdec.decoder",),  # numpy only, until a model is loaded
            "client/bench/variants.py": ("specdec.drafters",),  # their names
        },
    ),
    "the nouns know nobody": Rule(
        "backend/specdec",
        ("specdec", PB_UTILS, *HEAVY),
        allowed=tuple(f"specdec.{name}" for name in NOUNS),
    ),
}


def python_files(folder: str) -> list[Path]:
    path = ROOT / folder
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def package_of(path: Path) -> str:
    """The package a file belongs to, for relative imports."""
    relative = path.relative_to(ROOT).parent.as_posix()
    for folder, package in PACKAGES.items():
        if relative == folder or relative.startswith(f"{folder}/"):
            return package + relative.removeprefix(folder).replace("/", ".")
    return ""


def imports(source: str, package: str = "") -> Iterator[Import]:
    """Every import, by any of Python's ways that name a module in the source."""

    def visit(node: ast.AST, lazy: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *([base] if base else [])])
            yield Import(base, node.lineno, lazy)
            yield from (Import(f"{base}.{a.name}", node.lineno, lazy) for a in node.names)
        elif isinstance(node, ast.Call) and node.args:
            name = ast.unparse(node.func).rpartition(".")[2]
            first = node.args[0]
            if name in ("import_module", "__import__", "find_spec") and isinstance(
                first, ast.Constant
            ):
                yield Import(str(first.value), node.lineno, lazy)
        inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        inside = inside or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inside)

    yield from visit(ast.parse(source), False)


def is_below(module: str, roots: tuple[str, ...]) -> bool:
    return any(module == root or module.startswith(f"{root}.") for root in roots)


def breaches(rule: Rule, path: Path, source: str) -> list[str]:
    """What a file imports against a rule, as "file:line: module".

    `import specdec` and `from specdec import __version__` are allowed everywhere.
    """
    file = path.relative_to(ROOT).as_posix()
    allowed = (*rule.allowed, *rule.in_file.get(file, ()))
    found = {}
    for module, line, lazy in imports(source, package_of(path)):
        roots = (*allowed, *rule.lazily.get(file, ())) if lazy else allowed
        harmless = module in ("specdec", "specdec.__version__") or is_below(module, roots)
        if is_below(module, rule.forbidden) and not harmless:
            found[f"{file}:{line}: {module}"] = None
    return list(found)


def files_of(rule: Rule) -> list[Path]:
    files = python_files(rule.folder)
    if rule.folder == "backend/specdec":
        files = [path for path in files if path.stem in NOUNS and path.parent.name == "specdec"]
    return files


@pytest.mark.parametrize("name", RULES)
def test_rule(name):
    rule = RULES[name]
    files = files_of(rule)
    assert files, f"{rule.folder} is gone: the rule checks nothing"
    assert [fault for path in files for fault in breaches(rule, path, path.read_text())] == []


def test_tritons_bindings_are_touched_in_three_files():
    users = {
        path.relative_to(ROOT).as_posix()
        for folder in ("backend", "export", "client", "model_repository")
        for path in python_files(folder)
        if any(is_below(module, (PB_UTILS,)) for module, *_ in imports(path.read_text()))
    }
    assert PB_UTILS_USERS <= users <= PB_UTILS_ALLOWED


def test_exceptions_name_files_that_need_them():
    """An exception nobody uses any more is a hole."""
    for rule in RULES.values():
        for file, roots in {**rule.lazily, **rule.in_file}.items():
            found = [module for module, *_ in imports((ROOT / file).read_text())]
            for root in roots:
                assert any(is_below(module, (root,)) for module in found), (file, root)


# ---- the checker itself ------------------------------------------------------------------

SPECULATION, CLIENT = (
    RULES["speculation knows no decoder"],
    RULES["the client knows the contract and not the server"],
)
MUTANTS = {
    "import": "import specdec.decoder.cache",
    "renamed": "import torch as t",
    "from": "from specdec.decoder import cache",
    "from the root": "from specdec import decoder",
    "relative": "from ..decoder.cache import Cache",
    "relative to the root": "from .. import decoder",
    "in a function": "def f():\n    import onnxruntime",
    "for type checkers": "if TYPE_CHECKING:\n    from specdec.decoder.cache import Cache",
    "in a try": "try:\n    import torch.nn\nexcept ImportError:\n    pass",
    "by name": "import importlib\nimportlib.import_module('specdec.decoder')",
    "by __import__": "torch = __import__('torch')",
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name):
    path = ROOT / "backend/specdec/speculation/engine.py"
    original = path.read_text()
    assert breaches(SPECULATION, path, original) == []
    assert len(breaches(SPECULATION, path, f"{original}\n{MUTANTS[name]}\n")) > 0


@pytest.mark.parametrize(
    "source",
    [
        "from specdec.types import Decoder",
        "from specdec import __version__",
        "import torchlight, specdec.decoders",  # names that only begin alike
        "text = 'import torch'",
        "# import torch",
    ],
)
def test_harmless_sources_are_not(source):
    assert breaches(SPECULATION, ROOT / "backend/specdec/speculation/engine.py", source) == []


def test_a_lazy_exception_holds_inside_functions_only():
    path, line = ROOT / "client/serve_command.py", "from specdec.launcher.ports import Ports"
    assert breaches(CLIENT, path, f"def f():\n    {line}") == []
    assert breaches(CLIENT, path, line) != []
    assert breaches(CLIENT, ROOT / "client/client.py", f"def f():\n    {line}") != []


# ---- what an import really loads ---------------------------------------------------------


@pytest.mark.parametrize(
    "module",
    [
        "specdec.client",
        "specdec.client.cli",
        "specdec.client.bench.command",
        "specdec.launcher.launch",
        "specdec.speculation.service",
    ],
)
def test_importing_loads_nothing_heavy(module):
    """Whatever is imported on the way: half a second of torch is paid at every start."""
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "specdec" in loaded
    assert not loaded & set(HEAVY)
