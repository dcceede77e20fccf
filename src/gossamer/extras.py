"""Optional extras: the packages that each needs, and the error for one that is missing or broken."""

from __future__ import annotations

from importlib import import_module

from gossamer.errors import ConfigError

MODULES = {
    "browser": ("playwright.async_api",),
    "mysql": ("asyncmy",),
    "objects": ("obstore",),
    "parquet": ("pyarrow", "pyarrow.parquet"),
    "postgresql": ("asyncpg",),
    "redis": ("redis.asyncio",),
    "scrapy": ("scrapy",),
    "service": ("prometheus_client", "starlette.applications", "uvicorn"),
    "sql": ("duckdb",),
    "telemetry": ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http"),
    "warc": ("isal.isal_zlib",),
}
"""Extra -> the modules that Gossamer imports from its packages."""


def unusable(extra: str, what: str, error: ImportError) -> ConfigError:
    """The error for a feature whose extra is not installed, or cannot be imported."""
    packages, install = " and ".join(sorted(_packages(extra))), f"pip install 'gossamer[{extra}]'"
    if is_missing(extra, error):
        return ConfigError(f"{what} needs {packages}: not installed", hint=install)
    message = f"{what} needs {packages}, which cannot be imported: {' '.join(str(error).split())}"
    return ConfigError(message, hint=f"{install} --upgrade --force-reinstall")


def is_missing(extra: str, error: ImportError) -> bool:
    """Whether a package of the extra is not installed; False if it is broken or lacks a dependency."""
    return isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in _packages(extra)


def fault(extra: str) -> ImportError | None:
    """The error on importing this extra; None if it can be imported."""
    try:
        for module in MODULES[extra]:
            import_module(module)
    except ImportError as error:
        return error
    return None


def _packages(extra: str) -> set[str]:
    return {module.partition(".")[0] for module in MODULES[extra]}
