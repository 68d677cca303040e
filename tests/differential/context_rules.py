"""The rules of contexts and their memory: what happens, how that is known, and what ours does. A row is an entry here.

The numbers are ours; only tests and docs/parity.md use them. A test is named by its file below tests/ and its function.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

MEASURED, DOCUMENTED, ASSUMED = "measured", "documented", "assumed"
"""How a rule is known: run on the vendor's library or published by users of devices; stated by documents or headers;
concluded from these."""
DOES, REFUSES, LOGS, CHECKED, NOT = "does", "refuses", "logs", "checked", "not here"
"""What ours does. `CHECKED`: only the validation of calls names what breaks the rule. `NOT`: there is a reason."""


@dataclass(frozen=True)
class Rule:
    """A rule.

    - `topic`: The heading of its table.
    - `known`: `MEASURED`, `DOCUMENTED` or `ASSUMED`.
    - `tests`: The tests that show what ours does, as "capi/test_exclusions::test_name".
    - `note`: The reason if ours does not, or what differs.
    """

    number: int
    topic: str
    what: str
    known: str
    ours: str
    tests: tuple[str, ...] = ()
    note: str = ""

    def named(self) -> Iterator[tuple[str, str]]:
        """Yield the file and the function of each test."""
        for each in self.tests:
            file, _, function = each.partition("::")
            yield f"tests/{file}.py", function


_SHARING = "backends/htp/test_weight_sharing"
_GROUPS = "backends/htp/test_spill_fill_groups"
_GROUPS_IN_C = "capi/test_spill_fill_groups"
_CONCURRENT_GROUPS, _OWN_BUFFERS = "backends/htp/test_concurrent_groups", "backends/htp/test_client_buffers"
_EXCLUSIONS, _LIFETIMES = "capi/test_exclusions", "capi/test_lifetimes"
_LISTS, _BINARIES = "capi/test_binary_lists", "capi/test_binaries"
_CONFIGS, _CUSTOM = "capi/test_context_configs", "capi/test_custom_configs"
_INFORMATION = "capi/test_binary_information"
_PROVIDER = "capi/test_provider_memory"
_DOMAINS, _MODEL, _DOMAINS_IN_C = "backends/htp/test_process_domains", "domains/test_model", "capi/test_process_domains"
_VTCM, _NATIVE = "backends/htp/test_vtcm", "backends/htp/test_native_kv"
_LOGGED = f"{_CUSTOM}::test_an_option_of_an_htp_context_without_effect_is_logged_with_its_value"
_DEVICE_ONLY = "It needs hardware with Android: "
_NO_SECTIONS = "Tensors that can be updated after finalize are not offered, so there are no sections: 1000."

_WEIGHTS = "Shared weights"
_GROUP = "Spill-fill groups"
_CONCURRENT = "Concurrent groups"
_RESOURCES = "Shared resources of a list"
_FAST = "VTCM"
_DEFERRED = "Deferred graphs"
_BUFFERS = "Buffers of the client's"
_SESSIONS = "Process domains"
_LOADING = "Estimates and loading"
_BLOBS = "What binaries state"
_SWITCHING = "Switching and retention"
_ENABLED = "Enabled graphs"
_LISTED = "Callbacks and lists"
_SECTIONS = "Binary sections"
_RUNNING = "Execution"
_CACHES = "Native caches"
_PROFILE = "Profiles and files"

RULES: tuple[Rule, ...] = (
    Rule(1, _WEIGHTS, "Graphs of one context share equal constants; only where binaries are prepared on x86 Linux.",
         DOCUMENTED, DOES, (f"{_SHARING}::test_a_second_graph_with_the_same_weights_adds_little",),
         "Graphs that run where they were composed share too."),
    Rule(2, _WEIGHTS, "Documented from v73 on; the x86 library shares from v68 on.", MEASURED, DOES,
         ("capi/test_sharing_rules::test_graphs_share_as_much_as_with_the_vendors_library",)),
    Rule(3, _WEIGHTS, "Graphs that share are in one process domain and have one size of VTCM and one chip. The x86 "
         "library does not look at it.", DOCUMENTED, CHECKED,
         (f"{_EXCLUSIONS}::test_graphs_that_share_weights_have_one_size_of_vtcm",
          f"{_EXCLUSIONS}::test_graphs_that_share_weights_are_for_one_chip")),
    Rule(4, _WEIGHTS, "At most 64 graphs of a context share. The x86 library takes 66.", MEASURED, NOT,
         note="No number is checked, as in the x86 library."),
    Rule(5, _WEIGHTS, "Contexts that were made apart share nothing, and nothing is shared afterwards.", DOCUMENTED,
         DOES, (f"{_SHARING}::test_a_restored_context_keeps_what_its_binary_has",)),
    Rule(6, _WEIGHTS, "Every graph reports all shared weights; they count once, and not among its own constants.",
         MEASURED, DOES, (f"{_MODEL}::test_shared_weights_count_once_and_spill_fill_is_the_largest_of_the_graphs",
                          ""
         "capi/test_shared_weights::test_inspect_adds_up_the_weights_of_a_binary_of_the_vendors_library")),
    Rule(7, _WEIGHTS, "DLBC of weights excludes sharing: graphCreate answers 1000. DLBC of inputs does not.", MEASURED,
         DOES, (f"{_SHARING}::test_dlbc_of_weights_excludes_sharing",)),
    Rule(8, _WEIGHTS, "The memory of a context is the sum of its graphs' parts, and shared weights once.", DOCUMENTED,
         DOES, ("tools/test_plan_contexts::test_weights_count_once_for_each_context",)),
    Rule(9, _GROUP, "Only contexts from binaries join; a composed one gets a warning.", MEASURED, DOES,
         (f"{_GROUPS}::test_a_composed_context_joins_no_group",)),
    Rule(10, _GROUP, "The handle 0 founds a group; later contexts name the founder.", DOCUMENTED, DOES,
         (f"{_GROUPS}::test_members_compute_in_one_buffer",)),
    Rule(11, _GROUP, "The founder's size counts, and is not 0; those of later members do not.", DOCUMENTED, DOES,
         (f"{_GROUPS}::test_the_contexts_of_the_table",
          f"{_GROUPS_IN_C}::test_later_members_may_state_no_size_and_the_largest_need_must_come_first")),
    Rule(12, _GROUP, "A member that needs more than the group has is refused, with the vendor's line.", MEASURED, DOES,
         (f"{_GROUPS}::test_the_contexts_of_the_table",
          f"{_MODEL}::test_a_context_that_its_group_cannot_hold_is_refused_with_the_vendors_line"),
         "The code was not published; ours is 5005."),
    Rule(13, _GROUP, "A handle of no group, or of a founder that was refused, is refused with two lines.", MEASURED,
         DOES, (f"{_GROUPS}::test_a_group_that_does_not_exist_is_named_with_the_vendors_lines",
                f"{_GROUPS}::test_a_founder_that_is_refused_founds_nothing"), "As for the code, see rule 12."),
    Rule(14, _GROUP, "A context needs the spill-fill of its largest graph, a group that of its largest context; "
         "clients read it from the binaries.", DOCUMENTED, DOES,
         (f"{_GROUPS}::test_the_need_of_a_binary_is_its_scratch",
          f"{_PROVIDER}::test_a_cache_states_the_spill_fill_of_its_binary_and_the_provider_loads_with_the_largest")),
    Rule(15, _GROUP, "Members do not execute at the same time.", DOCUMENTED, DOES,
         (f"{_GROUPS}::test_graphs_of_a_group_never_run_at_once",
          f"{_EXCLUSIONS}::test_graphs_that_share_a_buffer_do_not_execute_at_once"), "They wait for each other."),
    Rule(16, _GROUP, "What happens to a group whose founder is freed is not documented.", ASSUMED, DOES,
         (f"{_GROUPS}::test_the_buffer_outlives_its_founder_and_none_joins_any_more",),
         "The buffer stays for the members; none can join."),
    Rule(17, _CONCURRENT, "Spill-fill and VTCM backup are shared.", DOCUMENTED, DOES,
         (f"{_CONCURRENT_GROUPS}::test_members_have_one_buffer_and_right_results",),
         "No graph yields its VTCM here, so there is no backup."),
    Rule(18, _CONCURRENT, "All contexts and graphs of a group have one priority.", DOCUMENTED, DOES,
         (f"{_CONCURRENT_GROUPS}::test_a_member_of_another_priority_is_refused_with_the_rule",
          f"{_CONCURRENT_GROUPS}::test_graphs_of_one_context_with_different_priorities_are_refused",
          f"{_EXCLUSIONS}::test_contexts_of_a_concurrent_group_have_one_priority")),
    Rule(19, _CONCURRENT, "The priority cannot be changed in a group.", DOCUMENTED, DOES,
         (f"{_CONCURRENT_GROUPS}::test_the_priority_of_a_member_cannot_be_changed",
          f"{_EXCLUSIONS}::test_priorities_are_not_changed_in_a_concurrent_group")),
    Rule(20, _CONCURRENT, "Only v81 on Android, and contexts from binaries.", DOCUMENTED, DOES,
         (f"{_CONCURRENT_GROUPS}::test_other_chips_refuse_it_with_the_vendors_line",
          f"{_CONCURRENT_GROUPS}::test_a_composed_context_is_in_no_concurrent_group"),
         "Any system: nothing depends on it."),
    Rule(21, _RESOURCES, "SHARE_RESOURCES is a config of a list, not of a single context.", DOCUMENTED, DOES,
         ("capi/test_binary_lists::test_options_of_lists_are_for_lists",)),
    Rule(22, _RESOURCES, "A type without sharing means nothing; sharing without a type is type 0.", DOCUMENTED, DOES,
         ("backends/htp/test_list_groups::test_a_type_without_shared_resources_is_ignored",)),
    Rule(23, _RESOURCES, "With the types 0 and 1 graphs take turns; 2 is concurrent.", DOCUMENTED, DOES,
         ("backends/htp/test_list_groups::test_graphs_of_a_list_never_run_at_once",
         "backends/htp/test_list_groups::test_contexts_of_a_concurrent_list_share_with_those_of_their_priority"),
         note="Graphs of type 2 take turns too."),
    Rule(24, _RESOURCES, "The batch stays as it was prepared; I/O is in shared buffers.", DOCUMENTED, CHECKED,
         (f"{_EXCLUSIONS}::test_graphs_of_a_list_keep_their_batch",)),
    Rule(25, _FAST, "The size is in MB or bytes, 0 for all that the chip has, 4 MB by default; binaries state bytes.",
         MEASURED, DOES, (f"{_VTCM}::test_the_size_of_vtcm_is_the_graphs_the_configurations_or_the_chips",
                          f"{_INFORMATION}::test_on_chip_memory_is_stated_in_bytes_as_by_the_vendors_library")),
    Rule(26, _FAST, "The option in bytes acts from v81 on.", MEASURED, DOES,
         (f"{_VTCM}::test_a_size_in_bytes_counts_from_version_81_on",)),
    Rule(27, _FAST,
         "A binary for all VTCM of a smaller chip answers 5011 on a larger one, with STRICT compatibility only.",
         DOCUMENTED, DOES,
         ("capi/test_context_configs::test_a_binary_for_all_vtcm_of_another_chip_is_refused_where_compatibility_is_strict",
         ), note="Without a named chip nothing is compared."),
    Rule(28, _FAST, "VTCM is given out in pages of 1, 4 and 16 MB, of which other clients in the process may use the "
         "rest.", DOCUMENTED, NOT, note="There is no VTCM here: a plan counts what would be in it, and nothing else in "
         "the process could take it."),
    Rule(29, _FAST, "Parallel graphs with parts of VTCM were removed: 2.51 answers 1000.", MEASURED, REFUSES,
         (f"{_CUSTOM}::test_an_option_of_an_htp_graph_that_the_vendor_removed_is_refused",)),
    Rule(30, _FAST, "VTCM is saved to a backup buffer when a graph yields; the x86 library reports 0 bytes.", MEASURED,
         DOES, (f"{_CONFIGS}::test_the_properties_of_a_deferred_context_say_what_to_allocate",),
         "0 bytes: no graph yields VTCM here."),
    Rule(31, _DEFERRED, "A deferred context has a handle and no graphs until contextFinalize, which finds its place.",
         DOCUMENTED, DOES, (f"{_CONFIGS}::test_deferred_graphs_are_loaded_by_contextfinalize",
                            f"{_DOMAINS}::test_a_deferred_context_gets_its_domain_when_it_is_finalized")),
    Rule(32, _DEFERRED, "Before, graphRetrieve answers 6023, and contextFree is allowed.", MEASURED, DOES,
         (f"{_CONFIGS}::test_deferred_graphs_are_loaded_by_contextfinalize",
          f"{_CONFIGS}::test_a_deferred_context_loads_nothing_and_can_be_freed")),
    Rule(33, _DEFERRED, "contextFinalize of another context answers 1000.", MEASURED, DOES,
         (f"{_CONFIGS}::test_a_context_that_is_not_deferred_needs_no_finalization",)),
    Rule(34, _DEFERRED, "The option is refused at contextCreate and by contextSetConfig.", MEASURED, DOES,
         (f"{_CONFIGS}::test_options_are_taken_where_they_have_a_meaning",)),
    Rule(35, _DEFERRED, "Only a deferred context has the properties 1, 2, 3 and 6.", MEASURED, DOES,
         (f"{_CONFIGS}::test_the_properties_of_a_deferred_context_say_what_to_allocate",)),
    Rule(36, _DEFERRED, "They are the largest spill-fill and the constants of each graph, in units of 2 MiB.", MEASURED,
         DOES, (f"{_MODEL}::test_the_properties_of_deferred_contexts",)),
    Rule(37, _BUFFERS, "They are registered between the creation and the finalization of a deferred context.",
         DOCUMENTED, DOES,
         (f"{_OWN_BUFFERS}::test_only_a_deferred_context_takes_buffers_and_only_before_it_is_finalized",
          f"{_EXCLUSIONS}::test_buffers_of_the_clients_are_for_deferred_contexts_before_they_are_finalized"),
         "Otherwise memRegister answers 8005."),
    Rule(38, _BUFFERS, "They are QNN's until contextFree; the client frees them then.", DOCUMENTED, DOES,
         (f"{_OWN_BUFFERS}::test_a_buffer_is_the_contexts_until_it_is_freed_also_without_its_handle",
          f"{_LIFETIMES}::test_a_buffer_of_the_clients_stays_registered_until_its_context_is_freed",
          f"{_LIFETIMES}::test_a_buffer_of_the_clients_that_is_closed_or_unmapped_too_early_is_named")),
    Rule(39, _BUFFERS, "Weights serve one context. One spill-fill buffer may serve several, whose graphs take turns.",
         MEASURED, DOES, (f"{_OWN_BUFFERS}::test_a_weights_buffer_belongs_to_one_context",
                          f"{_OWN_BUFFERS}::test_contexts_with_one_spill_fill_buffer_execute_in_turns",
                          f"{_EXCLUSIONS}::test_a_weights_buffer_serves_one_context",
                          f"{_EXCLUSIONS}::test_graphs_with_one_buffer_of_the_clients_do_not_execute_at_once")),
    Rule(40, _BUFFERS, "VTCM backup may be used at the same time; weights and spill-fill may not.", DOCUMENTED, CHECKED,
         (f"{_EXCLUSIONS}::test_graphs_that_share_memory_for_vtcm_may_execute_at_once",)),
    Rule(41, _BUFFERS, "Not with groups, switching, extended UDMA or a secure process domain.", DOCUMENTED, REFUSES,
         (f"{_OWN_BUFFERS}::test_groups_and_buffers_of_the_client_exclude_each_other",
          f"{_OWN_BUFFERS}::test_a_context_that_switches_graphs_takes_no_buffers",
          f"{_EXCLUSIONS}::test_buffers_of_the_clients_are_for_deferred_contexts_before_they_are_finalized"),
         "Groups and switching: 8005. Extended UDMA is only checked by the validation of calls, and there are no "
         "secure process domains."),
    Rule(42, _BUFFERS, "They do not lower the estimate of a context.", MEASURED, DOES,
         (f"{_OWN_BUFFERS}::test_buffers_of_the_client_change_nothing_about_process_domains",)),
    Rule(43, _BUFFERS, "Buffers above 2 GiB need rpcmem_alloc2.", MEASURED, DOES,
         ("memory/test_rpcmem::test_alloc2_does_not_end_at_two_gibibytes",)),
    Rule(44, _SESSIONS, "A process domain has 4 GB of addresses, 3.75 GB of it usable; chips have several.", DOCUMENTED,
         DOES, ("domains/test_profiles::test_the_default_is_what_the_vendor_documents",)),
    Rule(45, _SESSIONS, "The first domain with room takes a context; a context is never divided.", DOCUMENTED, DOES,
         (f"{_DOMAINS}::test_the_documents_five_models_are_placed_as_its_table_says",
          f"{_MODEL}::test_a_context_is_refused_with_gigabytes_free_since_it_is_never_divided")),
    Rule(46, _SESSIONS, "Every way to load a binary follows the same rule.", DOCUMENTED, DOES,
         ("capi/test_binary_lists::test_contexts_get_the_same_domains_from_every_call",)),
    Rule(47, _SESSIONS, "I/O is mapped in the domain of its context and can fail though others have room.", DOCUMENTED,
         DOES, (f"{_DOMAINS}::test_io_must_be_in_the_domain_of_its_context_though_another_has_room",)),
    Rule(48, _SESSIONS, "Remedies: the estimate of I/O, a registration that fills a domain for a time, lists.",
         DOCUMENTED, DOES, (f"{_DOMAINS}::test_with_the_estimate_of_io_a_domain_needs_room_for_it",
                            "domains/test_search::"
                            "test_a_dummy_registration_helps_and_an_estimate_with_io_helps_wherever_it_does"),
         "`isthmus fit` has the estimate and lists."),
    Rule(49, _SESSIONS, "Only enabled graphs count.", MEASURED, DOES,
         (f"{_DOMAINS}::test_only_enabled_graphs_are_charged",)),
    Rule(50, _SESSIONS, "A context without room answers 1002, with five lines.", MEASURED, DOES,
         (f"{_DOMAINS}::test_what_users_could_not_load_is_refused_with_the_vendors_lines_and_a_sentence",)),
    Rule(51, _SESSIONS, "A mapping without a place in a domain has lines of its own; the next domain is tried.",
         MEASURED, DOES, (f"{_MODEL}::test_732_mib_can_fail_with_1347_mib_free",
                          f"{_MODEL}::test_shared_weights_without_a_place_have_a_line_of_their_own")),
    Rule(52, _SESSIONS, "A session that cannot be opened has lines of its own.", MEASURED, DOES,
         (f"{_MODEL}::test_no_session_is_opened_without_memory_for_it_though_it_has_addresses",
          f"{_MODEL}::test_a_chip_with_one_session_opens_no_second_one"),
         "If a profile states the memory that is free."),
    Rule(53, _SESSIONS, "I/O without room answers 8003, with three lines.", MEASURED, DOES,
         (f"{_DOMAINS_IN_C}::test_a_buffer_without_room_gets_8003_until_another_is_deregistered",)),
    Rule(54, _LOADING, "IO_MEM_ESTIMATION adds the I/O of all graphs to the estimate.", DOCUMENTED, DOES,
         (f"{_MODEL}::test_the_estimate_has_the_io_only_if_it_is_asked_for",
          f"{_DOMAINS_IN_C}::test_the_estimate_of_io_is_a_custom_config")),
    Rule(55, _LOADING, "REUSED_IO_LIMIT takes the place of that sum; not more is registered at a time.", DOCUMENTED,
         DOES, (f"{_MODEL}::test_a_limit_of_reused_io_takes_the_place_of_the_io_of_all_graphs",
                f"{_EXCLUSIONS}::test_no_more_is_registered_than_the_limit_of_reused_io")),
    Rule(56, _LOADING, "Extended UDMA is for preparing, from v81 on: graphCreate answers 6000 before.", MEASURED, DOES,
         (f"{_CUSTOM}::test_extended_udma_is_for_graphs_that_are_prepared_from_v81_on",)),
    Rule(57, _LOADING, "FILE_READ_MEMORY_BUDGET reads constants in parts.", DOCUMENTED, LOGS,
         ("capi/test_graph_switching::test_a_binary_is_never_read_into_a_buffer_whatever_the_budget",),
         note="No binary is read into a buffer."),
    Rule(58, _LOADING, "PREPARE_ONLY loads nothing. INIT_ACCELERATION and SKIP_VALIDATION are about speed.", DOCUMENTED,
         DOES, (f"{_CUSTOM}::test_a_context_that_prepares_only_makes_a_binary_and_executes_nothing", _LOGGED),
         "The latter two are logged."),
    Rule(59, _LOADING, "PARALLEL_WEIGHT_LOADING copies shared weights in a second thread.", DOCUMENTED, LOGS,
         (_LOGGED,)),
    Rule(60, _BLOBS, "ONNX Runtime reads spill-fill from descriptions in version 3 only.", MEASURED, DOES,
         (f"{_PROVIDER}::test_a_cache_states_the_spill_fill_of_its_binary_and_the_provider_loads_with_the_largest",)),
    Rule(61, _BLOBS, "The JSON of qnn-context-binary-utility has graphBlobInfo and graphBlobInfoV2.", MEASURED, DOES,
         ("tools/test_context_binary_utility::test_the_memory_of_a_graph_on_a_chip_has_the_names_of_htps_blobs",)),
    Rule(62, _BLOBS, "Sections that can be updated are described too.", DOCUMENTED, NOT, note=_NO_SECTIONS),
    Rule(63, _BLOBS, "contextGetBinarySize of a restored context answers 1005.", MEASURED, DOES,
         ("capi/test_context_configs::test_a_context_from_a_binary_gives_none_in_c_and_its_binary_in_python",),
         note="In C. In Python such a context can be written again."),
    Rule(64, _SWITCHING, "A memory limit hint above 0 and a persistent binary turn switching on.", DOCUMENTED, DOES,
         ("backends/htp/test_graph_switching::test_switching_needs_both_a_hint_and_a_persistent_binary",
         "backends/htp/test_graph_switching::test_any_hint_means_the_same")),
    Rule(65, _SWITCHING, "One graph is loaded; executing another one unloads it.", DOCUMENTED, DOES,
         ("backends/htp/test_graph_switching::test_the_first_enabled_graph_is_loaded_at_creation",
         "capi/test_graph_switching::test_each_step_loads_and_unloads_what_the_documents_say")),
    Rule(66, _SWITCHING, "The binary, and a section that was applied, stay unchanged until contextFree.", DOCUMENTED,
         DOES, ("capi/test_graph_switching::test_a_binary_that_is_gone_or_changed_is_an_error_and_nothing_is_lost",
         "capi/test_lifetimes::test_a_persistent_binary_is_as_it_was_to_its_last_byte_when_its_context_is_freed",
         "capi/test_lifetimes::test_a_section_stays_with_a_persistent_binary_until_another_one_is_applied"),
         note="5005 for a graph that is to be loaded; the validation of calls looks at all of it."),
    Rule(67, _SWITCHING, "Graphs of such a context do not execute at the same time.", DOCUMENTED, DOES,
         ("backends/htp/test_graph_switching::test_graphs_of_a_context_that_switches_never_execute_at_once",)),
    Rule(68, _SWITCHING, "Graphs of the retention order are loaded at creation if they fit.", DOCUMENTED, DOES,
         ("backends/htp/test_graph_switching::test_graphs_to_retain_are_loaded_as_far_as_they_fit",)),
    Rule(69, _SWITCHING, "A switch unloads graphs outside the order first, then its last ones.", DOCUMENTED, DOES,
         ("backends/htp/test_graph_switching::test_each_step_loads_and_unloads_what_the_documents_say",)),
    Rule(70, _SWITCHING, "A graph outside the order stays until the next switch.", DOCUMENTED, DOES,
         ("backends/htp/test_graph_switching::test_each_step_loads_and_unloads_what_the_documents_say",)),
    Rule(71, _SWITCHING, "contextSetConfig replaces the order and unloads nothing.", DOCUMENTED, DOES,
         ("capi/test_graph_switching::test_a_new_order_counts_from_the_next_switch_on",)),
    Rule(72, _SWITCHING, "An order without a hint is off, with a warning.", MEASURED, DOES,
         ("capi/test_graph_switching::test_an_order_without_a_hint_warns_in_the_vendors_words",)),
    Rule(73, _SWITCHING, "An unknown name, or one that occurs twice, answers 5010.", MEASURED, DOES,
         ("capi/test_graph_switching::test_a_wrong_order_is_refused_in_the_vendors_words",)),
    Rule(74, _ENABLED, "Only named graphs are loaded; an unknown name is an error. The x86 library ignores the list.",
         DOCUMENTED, DOES, (f"{_CONFIGS}::test_graphs_that_are_not_enabled_are_not_loaded",
                            f"{_BINARIES}::test_only_enabled_graphs_of_a_binary_can_be_retrieved")),
    Rule(75, _ENABLED, "The option is refused at contextCreate.", MEASURED, DOES,
         (f"{_CONFIGS}::test_options_are_taken_where_they_have_a_meaning",)),
    Rule(76, _ENABLED, "graphRetrieve of an unknown name answers 6003.", MEASURED, DOES,
         (f"{_BINARIES}::test_only_enabled_graphs_of_a_binary_can_be_retrieved",),
         "Graphs that are not enabled get it too; a device's code for them was not published."),
    Rule(77, _LISTED, "provide() is called once a section, and its error becomes the call's.", DOCUMENTED, DOES,
         ("backends/htp/test_provided_weights::test_the_client_brings_shared_and_other_weights_apart",
         "capi/test_data_callbacks::test_the_error_of_a_callback_is_that_of_the_call")),
    Rule(78, _LISTED, "A buffer is aligned, another at every call, and untouched until release().", DOCUMENTED, DOES,
         ("capi/test_data_callbacks::test_an_address_that_is_not_aligned_is_refused_and_released",
         "backends/htp/test_provided_weights::test_a_buffer_serves_one_call_only",
         "capi/test_data_callbacks::test_a_context_uses_the_buffers_until_it_is_freed"),
         note="Kernels' packed weights take the place of the data."),
    Rule(79, _LISTED, "The binary is on disk, and made by 2.37 or later.", DOCUMENTED, DOES,
         ("backends/htp/test_provided_weights::test_what_data_callbacks_exclude_is_refused_before_any",
         "backends/htp/test_provided_weights::test_other_data_than_the_binarys_is_refused"),
         note="In Python it is a file or a reader of one. No library sees where a callback in C reads from, so its "
         "data are compared with their checksum."),
    Rule(80, _LISTED, "Not with deferred graphs, switching, extended UDMA, or type 0 in a list.", DOCUMENTED, REFUSES,
         ("backends/htp/test_provided_weights::test_what_data_callbacks_exclude_is_refused_before_any",
         "capi/test_data_callbacks::test_callbacks_are_refused_in_a_list_of_type_0",
         f"{_EXCLUSIONS}::test_data_callbacks_exclude_the_type_that_optimizes_addresses")),
    Rule(81, _LISTED, "An empty list, an entry without a buffer or a function, or of size 0, answers 5000.", DOCUMENTED,
         DOES, (f"{_LISTS}::test_an_empty_list_and_none_are_refused",)),
    Rule(82, _LISTED, "Configs of the list take precedence over an entry's own.", DOCUMENTED, DOES,
         ("capi/test_binary_lists::test_a_config_of_the_list_wins_over_that_of_a_binary",
         "capi/test_binary_lists::test_custom_configs_of_the_list_win_one_by_one")),
    Rule(83, _LISTED, "No context or graph is used before its notification.", DOCUMENTED, CHECKED,
         (f"{_LIFETIMES}::test_no_call_is_made_while_a_list_is_loaded",)),
    Rule(84, _LISTED, "The call returns after every notification.", DOCUMENTED, DOES,
         (f"{_BINARIES}::test_several_binaries_are_loaded_and_the_client_is_notified_of_each",)),
    Rule(85, _LISTED, "Each graph is notified of once, and each context.", DOCUMENTED, DOES,
         (f"{_LISTS}::test_a_notification_of_a_graph_names_no_context",)),
    Rule(86, _LISTED, "ONNX Runtime takes every context handle that a notification has for one of its own.", MEASURED,
         DOES, (f"{_LISTS}::test_a_notification_of_a_graph_names_no_context",),
         "Only the notification of a context has its handle."),
    Rule(87, _LISTED, "Not with groups; no other call meanwhile.", DOCUMENTED, CHECKED,
         (f"{_EXCLUSIONS}::test_a_list_of_binaries_excludes_groups_and_switching",
          f"{_LIFETIMES}::test_no_call_is_made_while_a_list_is_loaded",
          f"{_LIFETIMES}::test_a_list_is_not_loaded_while_another_call_is_made")),
    Rule(88, _SECTIONS, "Sections are written and applied; a new one replaces the earlier.", DOCUMENTED, NOT,
         note=_NO_SECTIONS),
    Rule(89, _SECTIONS, "With a persistent binary the buffer of a section stays until contextFree.", DOCUMENTED,
         CHECKED, (f"{_LIFETIMES}::test_a_section_stays_with_a_persistent_binary_until_another_one_is_applied",)),
    Rule(90, _SECTIONS, "An unknown section answers 5000; garbage 1009.", MEASURED, NOT, note=_NO_SECTIONS),
    Rule(91, _SECTIONS, "getBinarySectionUpdate makes a section for new values of tensors.", DOCUMENTED, NOT,
         note=_NO_SECTIONS),
    Rule(92, _SECTIONS, "A binary can be had in parts. The x86 library answers 1000.", MEASURED, NOT,
         note="1000, as in the x86 library; contextGetBinary has the whole."),
    Rule(93, _RUNNING, "SHARE_IO_BUFFER lets binaries state that outputs may be in the memory of inputs.", MEASURED,
         DOES, (f"{_INFORMATION}::test_a_description_in_version_3_has_a_blob_of_each_graph",),
         "For which graphs the vendor's library does, is not known."),
    Rule(94, _RUNNING, "The first dimension may be a multiple of the prepared one, the same for all I/O.", MEASURED,
         DOES, ("capi/test_variable_batch::test_every_part_of_a_multiple_of_the_batch_is_computed",
                "capi/test_variable_batch::test_other_dimensions_are_refused_in_the_vendors_words")),
    Rule(95, _RUNNING, "A queue has 10 places, at most 300, set at creation; a full one makes the caller wait.",
         DOCUMENTED, DOES, (f"{_CONFIGS}::test_the_queue_of_a_context_has_the_depth_that_is_asked_for",
                            f"{_CONFIGS}::test_a_queue_deeper_than_300_and_a_later_depth_are_refused")),
    Rule(96, _CACHES, "Native inputs and outputs are symmetric unsigned bytes, updated by ScatterElements; else "
         "graphFinalize answers 6004 or 1002. All graphs that were tried were refused.", MEASURED, REFUSES,
         ("capi/test_decoder_validation::"
          "test_a_graph_with_native_caches_is_refused_when_it_is_finalized_in_the_vendors_words",),
         "Every such graph: none is known that the vendor's library finalizes and computes rightly."),
    Rule(97, _CACHES, "With tokens in multiples of 32 outputs may be native; else they are flat, and the client "
         "converts.", DOCUMENTED, NOT, note="No graph here has native tensors (rule 96). For clients that convert, "
         "`htp.token_budget` counts the room that is left."),
    Rule(98, _CACHES, "The bytes of a head have an order of tiles and blocks.", DOCUMENTED, DOES,
         (f"{_NATIVE}::test_elements_are_where_clients_have_them",), "Not verified on a device or the x86 library."),
    Rule(99, _CACHES, "An empty native cache is 0, a flat one 128; new tokens begin at a multiple of 32.", DOCUMENTED,
         DOES, (f"{_NATIVE}::test_an_empty_cache_is_0_in_the_native_layout_and_128_in_the_flat_one",
                f"{_NATIVE}::test_new_tokens_begin_at_a_multiple_of_32"), "As rule 98."),
    Rule(100, _PROFILE, "Memory profiling has two events: before the first context, after the last.", DOCUMENTED, DOES,
         ("backends/htp/test_memory_profiling::test_the_first_creation_and_the_last_free_say_what_is_mapped",)),
    Rule(101, _PROFILE, "graph_names of a configuration that match no graph leave it at the defaults.", MEASURED, DOES,
         (f"{_VTCM}::test_the_size_of_vtcm_is_the_graphs_the_configurations_or_the_chips",)),
)  # fmt: skip
