//! The suite: what a strategy is to the tests, and the list of its promises.

use seamalloc::StrategyKind;

/// A strategy that is held to the contract, and what of its ways the tests have to know.
#[derive(Clone, Copy)]
pub(crate) struct Subject {
    pub(crate) kind: StrategyKind,
    /// Options that its allocators have beside those of a test.
    pub(crate) options: &'static str,
    /// Whether it maps memory: calls of the driver's virtual memory.
    pub(crate) maps: bool,
    /// Whether it has memory of plain `cudaMalloc`.
    pub(crate) mallocs: bool,
    /// Whether memory freed on one stream serves others.
    pub(crate) shares_streams: bool,
    /// Whether a shortage makes no more memory go back to the driver than the request needs.
    pub(crate) releases_no_more_than_needed: bool,
    /// Whether it looks at a free how far the GPU is, and can do without the answer.
    pub(crate) looks_without_need: bool,
    /// Whether other memory may come under the addresses of live blocks.
    pub(crate) exchanges: bool,
    /// Bytes of the units that memory is given back in, where several are reported as one piece.
    pub(crate) unit: Option<u64>,
}

impl Subject {
    /// A strategy of mapped memory that keeps streams apart.
    pub(crate) const fn of(kind: StrategyKind) -> Self {
        Self {
            kind,
            options: "",
            maps: true,
            mallocs: false,
            shares_streams: false,
            releases_no_more_than_needed: false,
            looks_without_need: false,
            exchanges: false,
            unit: None,
        }
    }
}

/// Holds a strategy to the promises that count no bytes, a test for each, in a module for each part. It suffices for
/// strategies whose blocks are larger than requests, which `tests/strategies/families` holds to the rest in its own sizes.
macro_rules! contract_of_any_sizes {
    ($subject:expr) => {
        contract_of_the_drivers_memory!($subject);

        promises!(figures as figures_of_kept:
            a_snapshot_tiles_what_is_reserved,
        );
        promises!(trim as trim_of_kept:
            no_piece_is_given_back_that_could_have_been_kept,
        );
        promises!(shortage as shortage_of_kept:
            what_the_last_wait_frees_serves_the_request,
        );
        promises!(hostile as hostile_of_kept:
            an_address_that_cannot_be_is_refused_and_not_handed_out,
        );
        promises!(pools as pools_of_kept:
            snapshots_show_whose_memory_it_is,
        );
        promises!(captures as captures_of_kept:
            no_call_of_ours_invalidates_a_capture,
        );
        promises!(graphs as graphs_of_kept:
            an_allocator_dropped_first_leaves_graphs_their_memory,
        );
        promises_among_peers!();
        #[cfg(target_os = "linux")]
        promises!(sharing:
            another_gpu_gets_it_and_gives_all_back,
        );
    };
}

/// Holds a strategy to those that also hold where the driver keeps the free memory: no snapshot shows that, and nobody but the
/// device may use any of it.
macro_rules! contract_of_the_drivers_memory {
    ($subject:expr) => {
        const SUBJECT: $crate::suite::Subject = $subject;

        promises!(blocks:
            zero_bytes_are_address_zero_and_take_nothing,
            addresses_and_sizes_are_aligned,
            live_blocks_share_no_byte,
            a_freed_block_serves_its_stream_at_once,
            what_is_not_a_live_allocation_is_an_error,
        );
        promises!(streams:
            naming_the_own_stream_or_freeing_address_zero_does_nothing,
            work_on_a_block_follows_that_of_its_recorded_streams,
        );
        promises!(ended_streams:
            memory_of_a_forgotten_stream_serves_others_once_it_has_passed,
            a_stream_of_a_private_pool_ends_too,
            random_programs_never_name_a_stream_that_is_gone,
            no_stream_is_forgotten_in_a_capture,
        );
        promises_by_the_clock!();
        promises!(figures:
            statistics_balance_after_each_operation,
        );
        promises!(release:
            once_all_is_freed_all_can_be_given_back,
            dropping_an_allocator_gives_everything_back_but_live_blocks,
        );
        promises!(trim:
            any_call_of_a_trim_may_fail,
        );
        promises!(limits:
            no_moment_of_any_program_is_beyond_the_limit,
            growth_leaves_the_headroom_free_whatever_others_take,
        );
        promises!(pressure:
            threads_may_be_short_at_the_same_time,
            an_allocator_outlives_its_callbacks_and_they_it,
        );
        promises!(shortage:
            a_limit_that_is_the_cause_is_named_with_the_one_that_would_do,
            a_headroom_that_is_the_cause_is_named_with_the_one_that_would_do,
            what_is_refused_is_refused_again,
        );
        promises!(failures:
            any_call_may_fail_at_any_time,
            any_call_may_be_out_of_memory_at_any_time,
        );
        promises!(hostile:
            memory_that_is_given_twice_is_handed_out_once,
            a_device_of_any_size_is_no_reason_to_panic,
            sizes_at_the_ends_are_errors,
            a_clock_that_runs_backwards_is_no_reason_to_panic,
            a_driver_that_answers_at_random_breaks_nothing,
            thousands_of_streams_are_served,
            an_observer_that_panics_is_dropped_and_harms_nothing,
        );
        promises!(threads:
            eight_threads_share_an_allocator,
            threads_may_share_an_allocator,
        );
        promises!(pools:
            wrong_uses_are_typed_errors_and_change_nothing,
            requests_follow_the_routes,
        );
        promises!(released_pools:
            what_no_capture_used_goes_back_in_stream_order,
            pools_that_come_and_go_leave_nothing_behind,
        );
        promises!(pool_segments:
            segments_are_pytorchs_and_are_cached_and_split,
            a_pool_that_never_had_memory_ends_at_once,
            an_ended_pool_that_is_opened_again_has_its_source_still,
            a_capture_may_take_from_it_and_its_memory_waits_for_the_device,
            a_graphs_released_pool_can_be_emptied_alone,
            unsplit_segments_are_one_block_each,
            segments_are_chosen_before_there_is_memory,
            only_what_it_holds_free,
            its_blocks_are_not_restored,
        );
        promises!(pool_sources:
            short_of_memory_the_pools_own_that_waits_is_waited_for,
            limits_count_its_segments,
            what_a_source_does_wrong_is_an_error_and_changes_nothing,
            what_a_source_does_not_take_back_stays_and_hinders_nobody,
            at_the_allocators_end_a_source_with_memory_in_use_is_not_dropped,
            a_segment_is_said_to_go_before_it_goes,
            events_say_which_pool_they_are_of,
        );
        promises!(unreliable_sources:
            a_sources_memory_is_its_pools_and_goes_back_to_it,
            whatever_sources_and_the_driver_fail_at,
        );
        promises!(captures:
            captures_that_nobody_told_of_are_left_alone,
            a_capture_may_take_what_an_earlier_one_handed_out_and_it_frees,
            a_capture_gets_what_an_earlier_one_handed_out_and_the_program_frees_once_it_is_passed,
            a_failed_call_changes_nothing,
            threads_capture_and_allocate_side_by_side,
        );
        promises!(graphs:
            a_pool_opened_again_has_its_memory_again,
            an_allocator_may_be_dropped_in_a_capture,
        );
    };
}

/// Holds a strategy to the contract: to all of that, and to the promises that count bytes. Whole MiB are whole MiB there.
macro_rules! contract {
    ($subject:expr) => {
        contract_of_any_sizes!($subject);

        promises!(streams as streams_by_bytes:
            a_recorded_stream_keeps_the_block_until_it_has_passed,
            memory_freed_on_another_stream_waits_for_both,
        );
        promises!(ended_streams as ended_streams_by_bytes:
            what_is_live_outlives_its_stream,
            a_handle_that_comes_again_is_another_stream,
            a_stream_that_was_replaced_unnoticed_is_waited_for,
            a_stream_that_was_destroyed_unnoticed_is_waited_for,
        );
        promises!(figures as figures_by_bytes:
            peaks_and_sums_can_be_reset,
        );
        promises!(trim as trim_by_bytes:
            freed_blocks_that_other_streams_use_are_waited_for_only_where_needed,
        );
        promises!(limits as limits_by_bytes:
            growth_reaches_the_limit_and_no_further,
            of_two_limits_the_lower_counts,
            a_lower_limit_gives_back_what_is_free_beyond_it,
        );
        promises!(pressure as pressure_by_bytes:
            what_a_callback_frees_serves_the_request,
            callbacks_are_called_in_order_until_one_helps,
            a_callback_that_frees_nothing_changes_nothing,
            a_callback_that_panics_is_removed_and_the_request_goes_on,
            a_callback_may_use_the_allocator_as_anyone,
            a_callback_that_takes_what_it_frees_ends_in_a_refusal,
        );
        promises!(shortage as shortage_by_bytes:
            what_others_hold_of_the_device_is_named_and_its_release_helps,
            live_memory_that_is_too_much_is_said_so_and_how_much,
            less_that_is_live_is_advised_only_where_it_is_enough,
            a_request_that_is_more_than_the_device_has_is_said_so,
            what_private_pools_keep_and_captures_forbid_is_said,
            out_of_memory_says_what_is_held_where_and_changes_nothing,
        );
        promises!(hostile as hostile_by_bytes:
            a_wait_that_fails_at_the_end_leaks_what_it_must_and_no_more,
        );
        promises!(pools as pools_by_bytes:
            a_private_pools_memory_serves_it_alone,
            segments_of_a_pools_stream_stay_when_another_comes,
            callbacks_are_asked_for_a_pool_too_and_may_do_anything_to_it,
        );
        promises!(released_pools as released_pools_by_bytes:
            a_released_pools_memory_waits_for_the_device,
            live_blocks_outlive_their_pool,
        );
        promises!(pool_segments as pool_segments_by_bytes:
            an_ended_pool_gives_its_segments_back_once_they_are_free_and_passed,
        );
        promises!(pool_sources as pool_sources_by_bytes:
            short_of_memory_it_gets_what_others_can_give_back,
        );
        promises!(captures as captures_by_bytes:
            frees_that_wait_in_a_capture_are_asked_for_after_it,
            a_capture_gets_nothing_that_its_stream_may_still_use,
            a_shortage_in_a_capture_leaves_it_valid,
        );
        promises!(graphs as graphs_by_bytes:
            a_graphs_memory_stays_where_it_is,
            trim_leaves_private_pools_what_they_have,
        );
        promises_among_peers_by_bytes!();
    };
}

/// Tests of one part of the suite. Each runs a promise, a function of that name in the part's file.
macro_rules! promises {
    ($part:ident: $($promise:ident),+ $(,)?) => {
        promises!($part as $part: $($promise),+);
    };
    ($part:ident as $name:ident: $($promise:ident),+ $(,)?) => {
        mod $name {
            $(
                #[test]
                fn $promise() {
                    crate::setup::use_options(super::SUBJECT.options);
                    crate::$part::$promise(super::SUBJECT);
                }
            )+
        }
    };
}
