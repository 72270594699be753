// What probe, plan and `run --plan auto` share: measuring a room, and telling what came of it.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "cli/session.h"
#include "ring/probe.h"

namespace tandem::cli {

/// Options of a probe over these workers, whose progress goes to standard error. Borrows `model`
/// and `manifest`.
ring::ProbeOptions probe_options(Model& model, const weights::Manifest* manifest,
                                 const model::StageOptions& local,
                                 const std::vector<ring::RingWorker>& workers);

/// Measures, plans for the fastest answer and says what came of it. Errors: those of the probe, and
/// kMemory if the model fits nowhere.
Result<std::vector<ring::RingWorker>> planned_workers(const ring::ProbeOptions& options,
                                                      bool quiet);

/// A plan as a table and sentences, and as one JSON object. `left_out`: devices that the plan does
/// not know of, and why. `spares`: who would stand by.
std::string plan_text(const ring::PlanInput& input, const ring::Plan& plan);
std::string plan_json(const ring::PlanInput& input, const ring::Plan& plan,
                      const std::vector<std::pair<std::string, std::string>>& left_out = {},
                      const std::vector<ring::RingWorker>& spares = {});
/// If all layers are to run on the host, though there are other devices: that this is so because it
/// is fastest, what sharing them out would cost, and how to ask for that. Else empty.
std::string alone_text(const ring::PlanInput& input, const ring::Plan& plan);
/// Who stands by for which layers, a line each.
std::string spares_text(const std::vector<ring::RingWorker>& spares);
/// What is short and what would help, in sentences.
std::string shortage_text(const ring::PlanInput& input, const ring::Short& shortage);

}  // namespace tandem::cli
