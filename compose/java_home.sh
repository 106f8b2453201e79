#!/usr/bin/env bash
# Prints the home of a Java of version 17 or newer: JAVA_HOME, PATH, then the usual folders. If there is none, it is
# installed for root on Debian or Ubuntu (openjdk-17-jre-headless); otherwise: one sentence and exit code 1.
set -euo pipefail
shopt -s nullglob
say() { printf '%s\n' "$*" >&2; }

major() { # major version that a java executable states, 0 if it does not run
  local text
  text=$("$1" -version 2>&1) || { echo 0; return; }
  sed -nE 's/.*version "(1\.)?([0-9]+).*/\2/p;T;q' <<<"$text" | grep . || echo 0
}

home_of() { # home of an executable, links resolved
  local real
  real=$(readlink -f "$1")
  dirname "$(dirname "$real")"
}

find_java() {
  local java
  for java in ${JAVA_HOME:+"$JAVA_HOME/bin/java"} "$(command -v java || true)" /usr/lib/jvm/*/bin/java \
    /usr/java/*/bin/java /opt/java/*/bin/java /opt/jdk*/bin/java \
    /Library/Java/JavaVirtualMachines/*/Contents/Home/bin/java /opt/homebrew/opt/openjdk*/bin/java \
    /usr/local/opt/openjdk*/bin/java "$HOME"/.sdkman/candidates/java/*/bin/java "$HOME"/.jdks/*/bin/java; do
    if [ -x "$java" ] && [ "$(major "$java")" -ge 17 ]; then
      home_of "$java"
      return 0
    fi
  done
  return 1
}

find_java && exit 0

package=openjdk-17-jre-headless
if [ "$(id -u)" = 0 ] && [ -f /etc/debian_version ] && command -v apt-get >/dev/null; then
  say "No Java 17 or newer was found; installing $package with apt-get, as Spark needs one."
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package"; } \
    >&2 && find_java && exit 0
  say "apt-get could not install $package; install a Java of version 17 or newer and set JAVA_HOME."
  exit 1
fi
say "Spark needs Java 17 or newer; none was found by JAVA_HOME, on PATH or in the usual folders. Install one (Debian and Ubuntu: apt-get install $package) or set JAVA_HOME."
exit 1
