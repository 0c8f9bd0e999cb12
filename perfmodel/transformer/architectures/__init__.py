"""One file per ``model_type`` of Hugging Face's config.json: its ``build`` turns the fields into a ModelSpec.

To add an architecture is to add a file with its name. What a file omits, the defaults of that configuration class in
huggingface/transformers (src/transformers/models/<model_type>/configuration_*.py) supply; they are stated in each file.
"""

from importlib import import_module

from perfmodel.core.errors import DataError, suggest
from perfmodel.core.plugins import module_names
from perfmodel.transformer.architectures._parts import HfFields
from perfmodel.transformer.spec import ModelSpec


def known() -> list[str]:
    """Every ``model_type`` with a rule."""
    return module_names(__path__)


def build(fields: HfFields) -> ModelSpec:
    """The model that ``fields`` describe, without name and source; DataError names the missing rule or field."""
    if fields.architecture not in known():
        raise DataError(f"model_type: no rule for the architecture {fields.architecture!r}", suggest(fields.architecture, known()))
    found: ModelSpec = import_module(f"{__name__}.{fields.architecture}").build(fields)
    return found
