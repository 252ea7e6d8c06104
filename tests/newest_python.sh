#!/bin/sh
# Prints the newest Python of this machine, on the path or of pyenv, that pyproject.toml names, if it is newer than 3.11.
for version in 3.13 3.12; do
  for python in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version".*/bin/"python$version"; do
    if "$python" -c 'import bz2, ctypes, ensurepip, lzma, sqlite3, ssl, venv' 2>/dev/null; then
      echo "$python"
      exit
    fi
  done
done
exit 1
