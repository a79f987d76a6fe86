"""Credentials, region and endpoint of a profile in `~/.aws/credentials` and `~/.aws/config`.

obstore reads the environment, and asks AWS where the environment has nothing; it does not know
these files. As with the AWS command line, keys of the environment win over those of a profile.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from configparser import ConfigParser
from configparser import Error as ConfigParserError

from tierlog.errors import ConfigError
from tierlog.log.files import printable

__all__ = ["profile_options"]

# Credentials of the environment, of any kind: then a profile has nothing to add.
_OTHER_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)
_CREDENTIALS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "token",
}
# An option, its key in a profile, and the variables that win over it.
_PLACES = (
    ("region", "region", ("AWS_REGION", "AWS_DEFAULT_REGION")),
    ("endpoint", "endpoint_url", ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")),
)
_NEEDS_AWS = ("credential_process", "role_arn", "sso_session", "sso_start_url")


def profile_options(environ: Mapping[str, str], given: Iterable[str]) -> dict[str, str]:
    """Options for obstore from the profile `AWS_PROFILE`, or the default one if there is one.

    ``given`` are the names of options that the caller has set. ConfigError for a profile that is
    missing, or whose credentials only the AWS command line can get.
    """
    plain = {name.lower().removeprefix("aws_") for name in given}
    name = environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE")
    profiles = _profiles(environ)
    if name and name not in profiles:
        known = ", ".join(sorted(map(printable, profiles))) or "none"
        raise ConfigError(
            f"AWS_PROFILE: expected a profile of ~/.aws/credentials or ~/.aws/config, found "
            f"{printable(name)!r}; there are: {known}"
        )
    profile = profiles.get(name or "default", {})
    options = {}
    if not any(environ.get(one) for one in _OTHER_CREDENTIALS) and "access_key_id" not in plain:
        options = {ours: profile[key] for key, ours in _CREDENTIALS.items() if key in profile}
        if name and not options and any(key in profile for key in _NEEDS_AWS):
            raise ConfigError(
                f"AWS_PROFILE {printable(name)}: tierlog does not sign in for a profile; run "
                f'eval "$(aws configure export-credentials --profile {printable(name)} '
                '--format env)" first'
            )
    for option, key, variables in _PLACES:
        if key in profile and option not in plain and not any(map(environ.get, variables)):
            options[option] = profile[key]
    return options


def _profiles(environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Every profile of both files; keys of the credentials file win."""
    home = environ.get("HOME", "")
    config = environ.get("AWS_CONFIG_FILE") or os.path.join(home, ".aws", "config")
    file = environ.get("AWS_SHARED_CREDENTIALS_FILE") or os.path.join(home, ".aws", "credentials")
    profiles: dict[str, dict[str, str]] = {}
    for path, prefix in ((config, "profile "), (file, "")):
        for section, keys in _sections(path).items():
            if section == "default" or section.startswith(prefix):
                profiles.setdefault(section.removeprefix(prefix).strip(), {}).update(keys)
    return profiles


def _sections(path: str) -> dict[str, dict[str, str]]:
    parser = ConfigParser(interpolation=None, default_section="\0", strict=False)
    try:
        parser.read(path, encoding="utf-8")
    except (ConfigParserError, UnicodeDecodeError) as error:
        # The message of a parser quotes the line, which may be a secret.
        raise ConfigError(
            f"{printable(path)}: expected sections of key = value lines, found a "
            f"{type(error).__name__}; compare the file with what `aws configure` writes"
        ) from None
    except OSError:
        return {}
    return {name: dict(parser[name]) for name in parser.sections()}
