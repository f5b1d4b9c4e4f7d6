"""The settings' reference page, printed from their table so that it cannot go stale.

python -m sparkport.cli.reference > docs/configuration.md
"""

from __future__ import annotations

from sparkport.config import SETTINGS, Setting

__all__ = ["reference_page"]

_HEAD = """\
# Configuration

`sparkport serve` takes its settings from three places; a later one wins:

1. a TOML file, named by `--config FILE` or by `SPARKPORT_CONFIG`;
2. environment variables, `SPARKPORT_*`;
3. flags.

A setting that does not exist, or a value of another kind, stops the start with an error that names it. A variable that
is set to nothing counts as not set. Relative paths in the file start from the file's folder, all others from where the
server is started.

```toml
host = "0.0.0.0"
port = 50051
tls_cert = "server.pem"
tls_key = "server.key"
token_file = "tokens"
max_message_bytes = "64MB"
jwt_algorithms = ["RS256", "ES256"]
```

Sizes are bytes, or take `KB`, `MB`, `GB` (thousands) and `KiB`, `MiB`, `GiB` (1024s). Lists are arrays in the file, and
parts with commas between them elsewhere. Flags for true or false are `--insecure` and `--no-insecure`. Secrets have no
flag, because others can see the command line of a process. [security.md](security.md) says what they are for.

In Kubernetes, a service named `sparkport` puts variables such as `SPARKPORT_SERVICE_HOST` and `SPARKPORT_PORT=tcp://...`
into every pod near it; these are ignored.

## All settings

| setting | kind | default | flag | variable | |
|---|---|---|---|---|---|
"""


def reference_page() -> str:
    return _HEAD + "".join(_row(setting) for setting in SETTINGS)


def _row(setting: Setting) -> str:
    default = "" if setting.default is None else f"`{setting.kind.show(setting.default)}`"
    flag = f"`{setting.flag}`" if setting.flag else ""
    env = f"`{setting.env}`" if setting.env else ""
    cells = (f"`{setting.name}`", setting.kind.label, default, flag, env, setting.help)
    return "| " + " | ".join(cells) + " |\n"


if __name__ == "__main__":
    print(reference_page(), end="")
