# shellcheck shell=bash disable=SC2154
# Of `dev`: the .deb and the .tar.gz.

check_deb() { # what it holds, and what it needs at run time
  local deb=$1 wanted contents depends libraries=(libgomp1)
  contents=$(dpkg-deb -c "$deb")
  depends=$(dpkg-deb -f "$deb" Depends)
  if grep -qs '^SMLA_DNNL_LIBRARY:FILEPATH=/' build/release/CMakeCache.txt; then libraries+=(libdnnl); fi
  for wanted in bin/smla include/sparsemla/c_api.h libsparsemla.so.0 libsparsemla.a sparsemlaConfig.cmake sparsemla.pc; do
    if ! grep -q "/$wanted" <<<"$contents"; then
      fail "package: $deb lacks $wanted"
      return 0
    fi
  done
  for wanted in "${libraries[@]}"; do
    if [[ $depends != *"$wanted"* ]]; then
      fail "package: $deb needs $wanted and does not say so"
      return 0
    fi
  done
  pass "package: $deb (needs $depends)"
}

part_package() {
  say "packages (Release, build/release/packages)"
  local out=build/release/packages archive deb
  if ! need "${run_packages[@]}" "${package_packages[@]}" || ! configure_and_build package build/release; then
    fail "package: build"
    return 0
  fi
  rm -rf "$out"
  if ! quietly cpack --config build/release/CPackConfig.cmake -B "$PWD/$out"; then
    fail "package: cpack"
    return 0
  fi
  for archive in "$out"/*.tar.gz; do
    if python3 tests/package/consumer_test.py . --unpack "$archive"; then pass "package: $archive"; else fail "package: $archive"; fi
  done
  deb=$(compgen -G "$out/*.deb" || true)
  if [[ -n $deb ]]; then check_deb "$deb"; else skip "package: no .deb, for dpkg-deb and dpkg-shlibdeps are not here"; fi
}
