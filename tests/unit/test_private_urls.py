"""No secret of a URL is shown, and what is no secret is."""

from __future__ import annotations

from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acktree.logs.private_urls import MASK, masked_text, masked_url

# A marker that can only come from the secret, among all that a URL is made of.
secrets = st.text("aB1:/@?#&;=%+ é\n", max_size=12).map(lambda text: f"{text}S3cr3t{text}")


@given(secrets)
def test_a_password_is_not_shown_whatever_it_is_made_of(password):
    for form in (password, quote(password, safe=""), quote(password), quote_plus(password)):
        masked = masked_url(f"postgresql+psycopg://me:{form}@host:5432/letters?connect_timeout=5")
        assert "S3cr3t" not in masked
        assert masked == f"postgresql+psycopg://{MASK}@host:5432/letters?connect_timeout=5"


@given(
    secrets, st.sampled_from(["password", "sslpassword", "PGPASSWD", "aws_secret_access_key", "authToken"])
)
def test_an_option_that_sounds_like_a_secret_is_not_shown(secret, name):
    masked = masked_url(f"mysql://host/letters?ssl=true&{name}={quote(secret, safe='')}&charset=utf8")
    assert masked == f"mysql://host/letters?ssl=true&{name}={MASK}&charset=utf8"


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////var/lib/letters.sqlite",
        "postgresql://host:5432/letters",
        "postgresql://[::1]:5432,other/my letters?sslmode=require",
        "",
    ],
)
def test_what_holds_no_secret_is_shown_as_it_is(url):
    assert masked_url(url) == url
    assert masked_text("whatever it says: *** a", url) == "whatever it says: *** a"


def test_a_url_without_a_user_may_have_a_password():
    assert masked_url("redis://:S3cr3t@host/0") == f"redis://{MASK}@host/0"


@given(secrets, st.text(max_size=5))
def test_a_text_that_quotes_the_secret_in_any_form_is_masked(secret, words):
    url = f"postgresql://me:{quote(secret, safe='')}@host/db?sslpassword={quote_plus(secret)}"
    for said in (url, secret, quote(secret, safe=""), quote_plus(secret)):
        assert "S3cr3t" not in masked_text(f"{words} cannot connect with {said!s}: {words}", url)


@pytest.mark.parametrize("end", "/?#")
def test_a_part_of_a_password_that_a_library_takes_for_a_port_is_masked(end):
    url = f"http://me:S3cr3t{end}more@host"
    said = "'me:S3cr3t' is not a valid host or port, for /more@host"
    assert masked_text(said, url) == "'me:***' is not a valid host or port, for /***@host"


def test_masking_what_is_masked_changes_nothing():
    once = masked_url("postgresql://me:S3cr3t@host/db?password=x")
    assert masked_url(once) == once
    assert masked_text("all is *** here", once) == "all is *** here"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("mssql+pyodbc:///?odbc_connect=UID%3Dme%3BPWD%3DS3cr3t", "mssql+pyodbc:///?odbc_connect=***"),
        ("mssql+pyodbc:///?odbc_connect=UID=me;PWD=S3cr3t", "mssql+pyodbc:///?odbc_connect=***;PWD=***"),
        ("postgresql:/me:S3cr3t@host/db", "***"),
        ("S3cr3t", "***"),
        ("me:S3cr3t@x://host", "***"),
        ("jdbc:sqlserver://host;password=S3cr3t", "***"),
        ("mssql://host;password=S3cr3t", "mssql://host;password=***"),
        ("postgresql://me:S3cr3t/db", "postgresql://***/db"),
        ("postgresql://host=h password=S3cr3t", "postgresql://***"),
        ("postgresql://host/db%3Fpassword%3DS3cr3t", "postgresql://host/***"),
        ("postgresql://host/db?S3cr3t", "postgresql://host/db?***"),
        ("postgresql://host/db?charset=utf8%3BPWD%3DS3cr3t", "postgresql://host/db?charset=***"),
        ("postgresql://host/db#S3cr3t", "postgresql://host/db#***"),
        ("postgresql://S3cr3t@host/db", "postgresql://***@host/db"),
        ("postgresql://me:S3cr3t@h:1,i:2/db?options=-c%20x", "postgresql://***@h:1,i:2/db?options=***"),
    ],
)
def test_a_secret_is_not_shown_wherever_it_is(url, shown):
    assert masked_url(url) == shown
    assert masked_url(shown) == shown


def test_a_driver_that_quotes_a_part_of_a_connection_string_does_not_show_its_password():
    url = "mssql+pyodbc:///?odbc_connect=DRIVER%3D%7Bx%7D%3BPWD%3DS3cr3t"
    assert masked_text("login with S3cr3t failed", url) == "login with *** failed"
