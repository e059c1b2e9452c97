"""The playground's files as the server sends them; tests/browser has what they do in a browser."""

import re
from pathlib import Path

from leafbeam.serve import app

FILES = sorted(path for path in app.FILES.iterdir())


def test_the_page_has_a_strict_policy_and_nothing_inline_or_from_elsewhere(client):
    response = client.get("/")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/html")
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", response.text)
    assert set(re.findall(r'(?:src|href)="([^"#]+)"', response.text)) <= {
        "/docs",
        "/metrics",
        *(f"/playground/{path.name}" for path in FILES),
    }


def test_every_file_is_served_with_its_type_and_read_again_only_if_it_changed(client):
    for path in FILES:
        response = client.get(f"/playground/{path.name}")
        assert response.content == path.read_bytes()
        kind = {".js": "javascript", ".css": "css", ".html": "html", ".svg": "svg"}[path.suffix]
        assert kind in response.headers["content-type"]
        assert response.headers["x-content-type-options"] == "nosniff"
        again = client.get(f"/playground/{path.name}", headers={"If-None-Match": response.headers["etag"]})
        assert again.status_code == 304


def test_modules_import_only_files_that_are_there():
    names = {path.name for path in FILES}
    for path in FILES:
        if path.suffix == ".js":
            imports = re.findall(r'from "([^"]+)"', path.read_text())
            assert {name.removeprefix("./") for name in imports} <= names
            assert "innerHTML" not in path.read_text()


def test_the_page_is_small():
    assert sum(path.stat().st_size for path in FILES) <= 150_000


def test_nothing_outside_the_folder_is_served(client):
    for path in (
        "/playground/../app.py",
        "/playground/%2e%2e/app.py",
        "/playground/..%2fpage.py",
        "/playground/",
        "/playground/no.js",
    ):
        response = client.get(path)
        assert response.status_code == 404
        assert response.json()["error"]["type"] == "RequestError"
    assert client.post("/").status_code == 405
    assert Path(app.__file__).exists()
