# shellcheck shell=bash
# What the scripts share. Sourced, with the working directory at the project's root.

say() { printf '\n== %s\n' "$*"; }

# install_packages GROUP...: installs what scripts/packages lists and this machine lacks.
install_packages() {
  local missing=() group entry package
  for group in "$@"; do
    # shellcheck disable=SC2013  # words are wanted
    for entry in $(sed -n "s/^$group //p" scripts/packages); do
      package="${entry#*:}"
      if [ "$package" != "$entry" ]; then
        command -v "${entry%%:*}" >/dev/null || missing+=("$package")
      elif ! dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed; then
        missing+=("$package")
      fi
    done
  done
  if [ ${#missing[@]} -eq 0 ]; then
    echo "All packages are here."
    return
  fi
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || {
      echo "These packages are missing: ${missing[*]}. Install them, or run this as root." >&2
      exit 1
    }
    as_root=(sudo)
  fi
  echo "Installing ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# Compilers that may run at once: one a core, and 1.5 GB of memory for each.
jobs_here() {
  local cores memory
  cores="$(nproc)"
  memory="$(awk '/MemAvailable/ {print int($2 / 1500000)}' /proc/meminfo)"
  [ "$memory" -ge 1 ] || memory=1
  if [ "$cores" -lt "$memory" ]; then echo "$cores"; else echo "$memory"; fi
}
