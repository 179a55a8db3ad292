// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "classifier/rules_toml.h"
#include "classifier/verbs_internal.h"

namespace gpurecover::classifier::verbs {
namespace {

using Json = nlohmann::ordered_json;

// Names come from files and command lines, and need not be UTF-8.
std::string render(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json name_or_null(const char* name) {
  return name ? Json(name) : Json(nullptr);
}

Json decision(const Explanation& e) {
  Json json;
  json["phase"] = to_string(e.query.phase);
  json["rule"] = e.match.rule_id();
  json["place"] = e.match.rule ? Json(place_of(*e.match.rule)) : Json(nullptr);
  json["class"] = to_string(e.match.cls);
  json["scope"] = to_string(e.match.scope);
  json["action"] = to_string(e.match.action);
  json["max_attempts"] = e.match.max_attempts;
  json["backoff_us"] = e.match.backoff_us;
  json["message"] = e.match.message();
  json["source"] = e.match.rule ? e.match.rule->source : "";
  return json;
}

}  // namespace

std::string to_json(const Explanation& e) {
  Json json;
  json["schema"] = "gpurecover.explain/1";
  json["code"] = e.query.code;
  json["name"] = code_name(e.query.code);
  json["kernel"] = e.query.kernel.empty() ? Json(nullptr) : Json(e.query.kernel);
  json["phase_assumed"] = e.phase_assumed;
  json["xids"] = Json::array();
  for (const SeenXid& seen : e.query.xids)
    json["xids"].push_back(seen.xid);
  json["decision"] = decision(e);
  json["losers"] = Json::array();
  for (const Contender& c : e.contenders) {
    if (!c.wins)
      json["losers"].push_back(
          {{"rule", c.rule->id}, {"place", place_of(*c.rule)}, {"why", c.why}});
  }
  return render(json);
}

std::string to_json(const Classification& c) {
  Json json;
  json["schema"] = "gpurecover.classify/1";
  json["codes"] = Json::array();
  for (const CodeAnswer& answer : c.codes) {
    Json code;
    code["code"] = answer.info->code;
    code["name"] = answer.info->name();
    code["driver_name"] = name_or_null(answer.info->driver_name);
    code["runtime_name"] = name_or_null(answer.info->runtime_name);
    code["meaning"] = answer.info->meaning;
    code["sticky"] = to_string(answer.info->sticky);
    code["nature"] = to_string(answer.info->nature);
    code["source"] = answer.info->source;
    code["date"] = answer.info->date;
    code["decisions"] = Json::array();
    for (const Explanation& e : answer.decisions)
      code["decisions"].push_back(decision(e));
    json["codes"].push_back(std::move(code));
  }
  json["xids"] = Json::array();
  for (const XidAnswer& answer : c.xids) {
    Json xid;
    xid["xid"] = answer.xid;
    xid["meaning"] = meaning_of(answer);
    xid["nvidia_action"] = bucket_of(answer);
    xid["rerun"] = to_string(rerun_of(answer));
    xid["advice"] = advice(rerun_of(answer));
    xid["source"] = name_or_null(answer.info ? answer.info->source : nullptr);
    xid["date"] = name_or_null(answer.info ? answer.info->date : nullptr);
    json["xids"].push_back(std::move(xid));
  }
  return render(json);
}

}  // namespace gpurecover::classifier::verbs
