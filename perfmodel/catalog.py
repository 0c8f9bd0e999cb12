"""The catalog of device profiles, models, systems, engines and configurations: finds them by name and reads them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from perfmodel.core import hardware
from perfmodel.core.errors import DataError, UsageError, suggest
from perfmodel.core.files import parse_yaml, read_json, read_yaml, validated_section
from perfmodel.core.kept import LazyList
from perfmodel.core.question import EAGER_ENGINE, short_name, typed

if TYPE_CHECKING:
    from perfmodel.core.hardware import Device
    from perfmodel.serving.engine import Engine
    from perfmodel.transformer.spec import ModelSpec
    from perfmodel.transformer.training.step.system import System

_PACKAGE = Path(__file__).parent

_Model = TypeVar("_Model")


def data_folder(name: str) -> Path:
    """The folder ``hardware_specs`` or ``configs``: inside an installed package, beside it in a source tree."""
    inside = _PACKAGE / "_data" / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


# Device profiles


def device_ids() -> list[str]:
    """Ids of the shipped profiles, sorted."""
    return _names(data_folder("hardware_specs"))


def _names(folder: str | Path) -> list[str]:
    """Names of the YAML files in ``folder``, without their suffix, sorted."""
    return sorted(name.removesuffix(".yaml") for name in os.listdir(folder) if name.endswith(".yaml"))


def find_device(name: str, option: str = "--hardware") -> Device:
    """The device that ``name`` means: an id, a short name, whole hyphen-separated words of exactly one id, or a path to a profile.

    If the words fit several devices of which only one is an SXM module, it is that one: ``h100`` is no PCIe card. ``option`` begins error
    messages.
    """
    if name.endswith((".yaml", ".yml")) or "/" in name:
        return load_device(Path(name))
    ids = device_ids()
    words = sorted({*ids, *"-".join(ids).split("-")})
    device_id = short_name(name) or _meant(
        name, ids, f"{option}: ", "device", "a profile, ending in .yaml", words, "see 'perfmodel hardware list'"
    )
    return _shipped_device(data_folder("hardware_specs") / f"{device_id}.yaml")


MODULE = "sxm"
"""The form of a data-centre GPU that a name without a form means."""


def _meant(
    name: str, known: list[str], option: str, kind: str, file: str, words: list[str] | None = None, otherwise: str | None = None
) -> str:
    """The entry of ``known`` that ``name`` means: itself, or the only one with all its hyphen-separated words, of which two may be joined.
    Of several, it is the one whose words all others contain: ``rtx-3090`` is no Ti.

    The UsageError begins with ``option``. It suggests the nearest of ``words``, or else ``otherwise``, or the path of a ``file``.
    """
    wanted = _words(name)
    matches = _matches(wanted, known) if any(wanted) else []
    if not matches:
        hint = suggest("-".join(wanted), words or known, otherwise)
        raise UsageError(f"{option}no {kind} is called {name!r}", f"{hint}; or give the path of {file}")
    if len(matches) > 1:
        raise UsageError(f"{option}{name!r} could be any of {len(matches)} {kind}s", f"say which: {', '.join(matches)}")
    return matches[0]


def _matches(wanted: list[str], known: list[str]) -> list[str]:
    """The entries of ``known`` that the words ``wanted`` can mean, as ``_meant`` describes."""
    words_of = {entry: _words(entry) for entry in known}
    exact = [entry for entry in known if words_of[entry] == wanted]
    if exact:
        return exact
    matches = [entry for entry in known if set(wanted) <= set(words_of[entry])]
    if not matches:
        with_joined_words = {entry: {*words, *map("".join, pairwise(words))} for entry, words in words_of.items()}
        matches = [entry for entry in known if set(wanted) <= with_joined_words[entry]]
    modules = [entry for entry in matches if MODULE in words_of[entry]]
    if len(modules) == 1 and wanted != ["nvidia"]:
        return modules
    in_all_others = [entry for entry in matches if all(set(words_of[entry]) <= set(words_of[other]) for other in matches)]
    return in_all_others if len(in_all_others) == 1 else matches


def _words(name: str) -> list[str]:
    """Words of a name in lower case, whether hyphens, underscores or spaces part them."""
    return re.sub(r"[\s_]+", "-", name.strip().lower()).split("-")


def _trusted(path: Path, read: Callable[[], _Model], checked: Callable[[Path], _Model]) -> _Model:
    """The content of a shipped file, built by ``read``, which checks nothing. If that fails, because the file was edited, ``checked`` says
    why.
    """
    try:
        return read()
    except (AttributeError, DataError, KeyError, TypeError, ValueError):
        return checked(path)


def calibrated_devices() -> list[Device]:
    """The shipped devices whose profiles carry calibrations."""
    folder = str(data_folder("hardware_specs"))  # as text: this is asked for every kernel, and paths are slow
    paths = (f"{folder}/{name}.yaml" for name in _names(folder))
    return [_shipped_device(Path(path)) for path in paths if _is_calibrated(path, os.stat(path).st_mtime_ns)]


@cache
def _is_calibrated(path: str, changed: int) -> bool:
    return "\ncalibration:" in Path(path).read_text(encoding="utf-8")


def load_device(path: Path) -> Device:
    """The profile in ``path``, validated with its calibrations."""
    from perfmodel.core.sanity import validated

    device = validated_section(path, (), validated)
    if device.calibration:
        from perfmodel.timing.base import check_calibrations

        try:
            check_calibrations(device)
        except DataError as error:
            raise DataError(f"{path}: {error.message}", error.fix) from None
    return device


def _shipped_device(path: Path) -> Device:
    return _read_once(path, path.stat().st_mtime_ns)


@cache
def _read_once(path: Path, changed: int) -> Device:
    """The profile in ``path``. ``changed``: time of its last change, so that an edited file is read again."""
    return _trusted(path, partial(_shipped, path), load_device)


def _shipped(path: Path) -> Device:
    """The shipped profile in ``path``, unchecked. Its records, most of its text, are read at their first use: few devices' are needed."""
    records, others = dict[str, LazyList[Any]](), list[str]()
    for section in re.split(r"\n(?=\w)", path.read_text(encoding="utf-8")):
        name = section.partition(":")[0]
        if name in hardware.RECORDS:
            records[name] = LazyList(partial(_records, path, name, section))
        else:
            others.append(section)
    raw = parse_yaml("\n".join(others), str(path))
    return hardware.trusted({**raw, **records})


def _records(path: Path, name: str, section: str) -> list[Any]:
    """Records of the kind ``name``, a key of ``hardware.RECORDS``, from ``section``: the text of that key in the profile ``path``.

    Tools write them as JSON but for the quotes of keys and the dashes of the list, and JSON is read in a fifth of the time.
    """

    def read() -> list[Any]:
        items = re.sub(r"\n *- ", ",", section.partition(":")[2]).removeprefix(",")
        quoted = '"'.join(re.split(r"(?<=[{, ])([a-z]\w*)(?=:)", items))
        return [hardware.RECORDS[name](**record) for record in json.loads(f"[{quoted}]")]

    return _trusted(path, read, lambda path: getattr(load_device(path), name))


# Configurations


def config_names(section: str = "attention") -> list[str]:
    """Names of the shipped configurations that have this section, sorted."""
    paths = data_folder("configs").glob("*.yaml")
    return sorted(path.stem for path in paths if f"\n{section}:" in "\n" + path.read_text(encoding="utf-8"))


def load_config(name: str, section: str, model: type[_Model]) -> _Model:
    """The ``section`` of a shipped configuration, or of the YAML file at path ``name``, as ``model``."""
    path = Path(name)
    if not name.endswith((".yaml", ".yml")) and "/" not in name:
        path = data_folder("configs") / f"{name}.yaml"
        if name not in config_names(section):
            raise UsageError(
                f"--config: no configuration is called {name!r}", f"{suggest(name, config_names(section))}; or give a path ending in .yaml"
            )
    from pydantic import TypeAdapter

    renamed = getattr(model, "OPTION_NAMES", {})  # options whose names are Python keywords

    def validate(raw: dict[str, Any]) -> _Model:
        return TypeAdapter(model).validate_python(typed(model, {renamed.get(key, key): value for key, value in raw.items()}))

    return validated_section(path, (section,), validate)


# Models


def model_names() -> list[str]:
    """Names of the shipped models, sorted."""
    return _names(data_folder("configs") / "models")


def find_model(name: str) -> ModelSpec:
    """The model that ``name`` means: a name, whole hyphen-separated words of exactly one, or the path of a config.json."""
    path, shipped = _model_path(name)
    if not shipped:
        return load_model(path)
    from perfmodel.transformer.hf import spec

    def read() -> ModelSpec:
        raw = read_yaml(path)[0]
        return spec(raw["config"], path.stem, raw["source"])

    return _trusted(path, read, load_model)


def _model_path(name: str) -> tuple[Path, bool]:
    """The file of the model that ``name`` means, and whether it is shipped."""
    if name.endswith((".json", ".yaml", ".yml")) or "/" in name:
        return Path(name), False
    known_name = _meant(name, model_names(), "", "model", "a config.json")
    return data_folder("configs") / "models" / f"{known_name}.yaml", True


def model_fields(name: str) -> dict[str, Any]:
    """Fields of config.json of the language model that ``name`` means, as ``find_model`` finds it."""
    from perfmodel.transformer.hf import flat

    raw, _, _ = _model_content(_model_path(name)[0])
    return flat(raw)[0]


def load_model(path: Path) -> ModelSpec:
    """The model in ``path``: a config.json, a folder with one, or YAML with the same fields under ``config``."""
    from perfmodel.transformer.hf import parse

    raw, name, source = _model_content(path)
    try:
        return parse(raw, name, source)
    except DataError as error:
        raise DataError(f"{path}: {error.message}", error.fix) from None


def _model_content(path: Path) -> tuple[Any, str, str]:
    """What a config.json at ``path``, or in that folder, says, the name of its model, and its source; YAML has it under ``config``."""
    if os.path.isdir(path):  # unlike Path.is_dir, False for names that are too long
        path = path / "config.json"
    if not os.path.lexists(path):
        raise DataError(f"{path}: No such file", "give the path of a config.json, or a model's name, such as llama-3-8b")
    is_config = path.stem == "config"
    name = path.parent.resolve().name if is_config else path.stem
    if path.suffix == ".json":
        raw = read_json(path)
        quantization_path = path.with_name("hf_quant_config.json")
        if is_config and isinstance(raw, dict) and "quantization_config" not in raw and quantization_path.is_file():
            raw["quantization_config"] = read_json(quantization_path)
        return raw, name, str(path)
    document = read_yaml(path)[0]
    if not isinstance(document, dict) or not isinstance(document.get("config"), dict):
        raise DataError(f"{path}: no mapping 'config' in it", "put the fields of a config.json under 'config:'")
    source = document.get("source", str(path))
    if not isinstance(source, str):
        raise DataError(f"{path}: source is {source!r:.40}, not text", "quote it")
    return document["config"], name, source


# Systems


def system_names() -> list[str]:
    """Names of the shipped systems, sorted."""
    return _names(data_folder("configs") / "systems")


def find_system(name: str) -> System:
    """The system that ``name`` means: a name, whole hyphen-separated words of exactly one, or the path of a file."""
    from perfmodel.transformer.training.step.system import trusted, validated

    def checked(path: Path) -> System:
        return validated_section(path, (), validated)

    if name.endswith((".yaml", ".yml")) or "/" in name:
        return checked(Path(name))
    known_name = _meant(name, system_names(), "--system: ", "system", "a file, ending in .yaml")
    path = data_folder("configs") / "systems" / f"{known_name}.yaml"
    return _trusted(path, lambda: trusted(read_yaml(path)[0]), checked)


def system_of(device: str) -> System | None:
    """The shipped system of devices with this id; None if there is none."""
    for name in system_names():
        system = find_system(name)
        if system.device == device:
            return system
    return None


# Engines


def engine_names() -> list[str]:
    """Names of the shipped engine presets, sorted."""
    return _names(data_folder("configs") / "engines")


def find_engine(name: str) -> Engine:
    """The engine that ``name`` means: a preset's name, whole hyphen-separated words of exactly one, or the path of a file."""
    from perfmodel.serving.engine import trusted, validated

    def with_known_kernels(engine: Engine) -> Engine:
        engine.kernels.check(shipped_implementations())
        return engine

    def checked(path: Path) -> Engine:
        return validated_section(path, (), lambda raw: with_known_kernels(validated(raw)))

    if name.endswith((".yaml", ".yml")) or "/" in name:
        return checked(Path(name))
    name = ENGINE_ALIASES.get(name.lower(), name)
    if name == EAGER_ENGINE:
        raise UsageError(
            f"--engine {name} is captured in PyTorch for perfmodel model alone", f"give {', '.join(engine_names())}, or a file"
        )
    names = engine_names()
    known_name = _meant(name, names, "--engine: ", "engine", "a file, ending in .yaml", [*names, EAGER_ENGINE])
    path = data_folder("configs") / "engines" / f"{known_name}.yaml"
    return _trusted(path, lambda: with_known_kernels(trusted(read_yaml(path)[0])), checked)


@cache
def shipped_implementations() -> dict[str, set[str]]:
    """Implementations, by workload, that shipped profiles are calibrated for."""
    from perfmodel.timing.implementations import implementations

    return implementations(calibrated_devices())


ENGINE_ALIASES = {"trtllm": "tensorrt-llm", "trt-llm": "tensorrt-llm", "llamacpp": "llama.cpp", "llama-cpp": "llama.cpp"}
