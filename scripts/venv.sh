# Sourced by the other scripts: moves to the repository's root and makes .venv, or reuses it while nothing it is made from changed.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

python_for_venv() {
  local name
  for name in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$name"
      return
    fi
  done
  echo "Python 3.11 or newer is needed; set PYTHON to one" >&2
  return 1
}

# make_venv EXTRA: .venv with the package installed in place, with an extra (train, dev). More than asked is kept as it is.
make_venv() {
  local extra=$1 python stamp
  python=$(python_for_venv) || exit 2
  stamp=$(cat pyproject.toml constraints.txt | "$python" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())')
  if grep -qsx -e "$stamp $extra" -e "$stamp dev" .venv/burnish-stamp; then
    return
  fi
  echo "making .venv with burnish[$extra] (minutes the first time)"
  [ -x .venv/bin/python ] || "$python" -m venv .venv || exit 1
  .venv/bin/python -m pip install --disable-pip-version-check -c constraints.txt -e ".[$extra]" > .venv/burnish-install.log 2>&1 \
    || { tail -n 20 .venv/burnish-install.log >&2; exit 1; }
  echo "$stamp $extra" > .venv/burnish-stamp
}
