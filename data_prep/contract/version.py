"""The version of the installed package, as records and manifests name it."""

from importlib import metadata


def tool_version() -> str:
    """Version of the distribution `data_prep` comes with; "unknown" where it is not installed."""
    try:
        return metadata.version("bert_ds")
    except metadata.PackageNotFoundError:
        return "unknown"
