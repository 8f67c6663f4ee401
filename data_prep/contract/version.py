"""The version of the installed package, as records and manifests name it."""

from importlib import metadata


def tool_version() -> str:
    """Return the version of the installed distribution; "unknown" where there is none."""
    try:
        return metadata.version("bert_ds")
    except metadata.PackageNotFoundError:
        return "unknown"
