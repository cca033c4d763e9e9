"""Files of the configuration: YAML and secrets, refused with one line that says the fix."""

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

MIN_SECRET_CHARS = 32
MIN_SECRET_VARIETY = 10
_PLACEHOLDER = re.compile(
    r"change.?me|placeholder|example|your.{0,10}(key|token)|secret|password|<.*>", re.IGNORECASE
)

ModelT = TypeVar("ModelT", bound=BaseModel)


class ConfigurationError(Exception):
    """The process cannot start as configured. One line: what is wrong and what to do."""


def read_secret(directory: Path, name: str) -> str:
    """The secret in `directory/name`, stripped. Raises ConfigurationError where it is missing, a placeholder
    or weak.
    """
    path = directory / name
    try:
        value = path.read_text(encoding="ascii").strip()
    except PermissionError as error:
        raise ConfigurationError(
            f"secret {path} cannot be read ({error.strerror}). Make it readable: chmod 444 secrets/{name}"
        ) from None
    except OSError as error:
        raise ConfigurationError(
            f"secret {path} cannot be read ({error.strerror}). `make setup` writes it."
        ) from None
    except UnicodeDecodeError:
        raise ConfigurationError(
            f"secret {path} is not plain ASCII. Delete it and run `make setup`."
        ) from None
    if _PLACEHOLDER.search(value):
        raise ConfigurationError(f"secret {path} is a placeholder. Delete it and run `make setup`.")
    if len(value) < MIN_SECRET_CHARS or len(set(value)) < MIN_SECRET_VARIETY:
        raise ConfigurationError(
            f"secret {path} is weak: {MIN_SECRET_CHARS} random characters are the least. "
            "Delete it and run `make setup`."
        )
    return value


class _UniqueKeys(yaml.SafeLoader):
    """YAML without duplicate keys, of which PyYAML keeps the last and says nothing."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - the base class's signature
        seen: set[Any] = set()
        for key, _ in node.value:
            name = self.construct_object(key, deep=True)
            if isinstance(name, Hashable) and name in seen:
                raise yaml.constructor.ConstructorError(None, None, f"found {name!r} twice", key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


def load_yaml(model: type[ModelT], path: Path) -> ModelT:
    """The YAML file as this model. Raises ConfigurationError: one line with the file and the place."""
    try:
        raw: Any = yaml.load(path.read_text(encoding="utf-8"), _UniqueKeys)  # noqa: S506 - a SafeLoader
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read ({error.strerror}).") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: bytes that are no UTF-8, a date that is none
        raise ConfigurationError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise ConfigurationError(f"{path}: {first_problem(error)}") from None


def first_problem(error: ValidationError, prefix: str = "") -> str:
    """The first thing that is wrong, with its place; with a prefix, the place is a variable's name."""
    first = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    if where and prefix:
        where = f"{prefix}{where.upper()}"
    problem = first["msg"].removeprefix("Value error, ")
    return f"{where}: {problem}" if where else problem
