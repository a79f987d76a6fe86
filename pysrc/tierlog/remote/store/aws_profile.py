"""Read credentials, region and endpoint from `~/.aws/credentials` and `~/.aws/config`.

obstore reads only the environment and AWS's own services; it does not read these files. As with the
AWS command line, credentials in the environment take precedence over a profile's credentials.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from configparser import ConfigParser
from configparser import Error as ConfigParserError

from tierlog.errors import ConfigError
from tierlog.log.files import printable

__all__ = ["profile_options"]

# When one of these variables is set, the environment has credentials, so the profile's credentials
# are not used.
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
# Name of the option, its key in a profile, and the variables that take precedence over the profile.
_OPTIONS = (
    ("region", "region", ("AWS_REGION", "AWS_DEFAULT_REGION")),
    ("endpoint", "endpoint_url", ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")),
)
_NEEDS_AWS = ("credential_process", "role_arn", "sso_session", "sso_start_url")


def profile_options(environ: Mapping[str, str], given: Iterable[str]) -> dict[str, str]:
    """Return options for obstore from the profile `AWS_PROFILE`, or from the default profile.

    ``given`` are the names of options that the caller has set. Raises ConfigError when the profile
    is missing, or when only the AWS command line can get the profile's credentials.
    """
    plain = {name.lower().removeprefix("aws_") for name in given}
    name = environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE")
    profiles = _read_profiles(environ)
    if name and name not in profiles:
        known = ", ".join(sorted(map(printable, profiles))) or "none"
        raise ConfigError(
            f"AWS_PROFILE: expected a profile of ~/.aws/credentials or ~/.aws/config, found "
            f"{printable(name)!r}; the profiles are: {known}"
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
    for option, key, variables in _OPTIONS:
        if key in profile and option not in plain and not any(map(environ.get, variables)):
            options[option] = profile[key]
    return options


def _read_profiles(environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the keys of every profile in both files. A key of the credentials file takes
    precedence."""
    home = environ.get("HOME", "")
    config = environ.get("AWS_CONFIG_FILE") or os.path.join(home, ".aws", "config")
    file = environ.get("AWS_SHARED_CREDENTIALS_FILE") or os.path.join(home, ".aws", "credentials")
    profiles: dict[str, dict[str, str]] = {}
    for path, prefix in ((config, "profile "), (file, "")):
        for section, keys in _read_sections(path).items():
            if section == "default" or section.startswith(prefix):
                profiles.setdefault(section.removeprefix(prefix).strip(), {}).update(keys)
    return profiles


def _read_sections(path: str) -> dict[str, dict[str, str]]:
    parser = ConfigParser(interpolation=None, default_section="\0", strict=False)
    try:
        parser.read(path, encoding="utf-8")
    except (ConfigParserError, UnicodeDecodeError) as error:
        # A parser's message quotes the line, which may hold a secret.
        raise ConfigError(
            f"{printable(path)}: expected sections of key = value lines, found a "
            f"{type(error).__name__}; compare the file with what `aws configure` writes"
        ) from None
    except OSError:
        return {}
    return {name: dict(parser[name]) for name in parser.sections()}
