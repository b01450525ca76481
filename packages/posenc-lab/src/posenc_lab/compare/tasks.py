"""The tasks of a comparison by name, and configurations with their defaults. A task is imported only when it is used,
so that names can be listed without loading torch."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posenc.arguments import check_name
from posenc_lab.compare.config import CompareConfig
from posenc_lab.kit import configuration_file
from posenc_lab.kit.configuration import ConfigError

if TYPE_CHECKING:
    from posenc_lab.compare.task import Task

TASKS = ("text", "pieces", "recall")


def task_of(name: str) -> "Task":
    """The task of that name. `ConfigError`, with the known names, for another."""
    try:
        check_name("task", name, TASKS)
    except ValueError as error:
        raise ConfigError("task", str(error)) from None
    if name == "text":
        from posenc_lab.compare.text import Text

        return Text()
    if name == "pieces":
        from posenc_lab.compare.pieces import Pieces

        return Pieces()
    from posenc_lab.compare.puzzle import Recall

    return Recall()


def complete(config: CompareConfig) -> CompareConfig:
    """The configuration with the task's test lengths if none are given. `ConfigError` for what does not fit the task.

    >>> complete(CompareConfig(train_length=64)).test_lengths
    (32, 64, 128, 256, 512)
    """
    task = task_of(config.task)
    lengths = config.test_lengths or tuple(int(times * config.train_length) for times in task.multiples)
    config = replace(config, test_lengths=lengths)
    task.check(config)
    return config


def configured(values: Mapping[str, Any]) -> CompareConfig:
    """A configuration from names and values, with the task's defaults for the others.

    >>> configured({"task": "recall"}).test_lengths
    (16, 32, 64, 128)
    """
    task = CompareConfig.from_mapping({"task": values["task"]} if "task" in values else {}).task
    return complete(CompareConfig.from_mapping({**task_of(task).defaults, **values}))


def from_toml(path: str | Path, **overrides: Any) -> CompareConfig:
    """The configuration of a TOML file, with ``overrides`` applied. ValueError as `configuration_file.from_toml` raises
    it."""
    return configuration_file.from_toml(path, configured, **overrides)
