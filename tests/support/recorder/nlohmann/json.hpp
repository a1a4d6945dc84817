// Stands in for nlohmann/json, which torch's header needs to be parsed and its JSON dump to be run:
// the JSON form is tested with the dumps of real gloo jobs.
#pragma once
#include <list>
#include <string>

namespace nlohmann {
struct json {
  template <typename Key>
  json& operator[](const Key&) { return *this; }
  template <typename Value>
  json& operator=(const Value&) { return *this; }
  std::string dump() const { return "{}"; }
};
} // namespace nlohmann
