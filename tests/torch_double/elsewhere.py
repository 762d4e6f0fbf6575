# SPDX-License-Identifier: Apache-2.0
"""Tests of the Python package that cannot hold for models on the device `late`, by their reason."""
# The test reads memory that may be unmapped, and that error ends the context for later tests.
NOT_MAPPED = "a tensor that was taken of a parameter before its updates is undefined, and warned of"
REASONS = {
    "NumPy has no array over memory of a device": {
        "test_offload.py": {"Offload": """
            test_arrays_over_parameters_are_written_inside_forward_and_kept_for_good"""},
        "test_offload_saved.py": {"Entries": """
            test_an_entry_follows_writes_that_no_count_shows"""},
        "test_offload_gradients.py": {"Gradient": """
            test_what_code_in_c_or_numpy_does_is_done_or_refused"""},
        "test_offload_states.py": {"Masters": """
            test_writes_to_several_weights_of_a_block_are_all_seen"""},
    },
    "what goes around PyTorch's functions reads what is not pinned, which nothing serves": {
        "test_offload_updates.py": {"Numbers": """
            test_what_is_read_around_functions_after_a_step_is_updated"""},
        "test_offload_several.py": {"Nodes": """
            test_a_hook_that_keeps_a_weight_inside_of_another_object"""},
    },
    "the double finds a wrong argument when the operation runs, which is late": {
        "test_offload_gradients.py": {"Operation": """
            test_one_that_fails_leaves_the_values_that_were_there"""},
    },
    "a small gradient is copied with others, and not by the function that the test replaces": {
        "test_offload_check.py": {"Check": "test_a_gradient_that_arrives_wrong_is_named"},
    },
    "plain PyTorch has that path on the CPU and GPUs alone": {
        "test_offload_outside.py": {"Edges": """
            test_an_encoder_takes_the_path_that_it_takes_in_plain_torch"""},
    },
    "the double lacks an operation: cells of an LSTM, histograms of integers, sparse tensors": {
        "test_offload.py": {"Offload": """
            test_modules_that_use_parameters_of_their_children_have_the_same_losses"""},
        "test_offload_clients.py": {
            "Models": "test_mixtral_has_the_losses_of_plain_torch",
            "Programs": "test_an_lstm_has_the_losses_of_plain_torch"},
        "test_offload_several.py": {"Parts": """
            test_code_in_c_that_writes_what_it_has_saved"""},
        "test_offload_resident.py": {"Resident": """
            test_errors_of_gradients_are_those_of_a_model_that_moves"""},
        "test_offload_updates.py": {"Numbers": "test_sparse_tensors_are_saved"},
    },
    "its first run is another process, which has no such device": {
        "test_offload_files.py": {"Commits": """
            test_a_run_that_was_killed_goes_on_with_equal_bits"""},
    },
    "no process that was forked has the device": {
        "test_offload_clients.py": {"Programs": """
            test_workers_of_a_data_loader_may_fork_from_it"""},
    },
    "what is counted went to or from the drive, and here nothing leaves the host": {
        "test_offload_clients.py": {"Programs": """
            test_the_progress_of_a_loop_is_what_went_since_the_last_line"""},
    },
    "no views and no gradients stay for the backward pass or the update": {
        "test_offload_resident.py": {"Resident": """
            test_gradients_are_those_of_plain_torch
            test_gradients_from_before_stay_and_are_added_to
            test_gradients_outlive_an_interrupted_wait_for_their_update
            test_views_are_kept_for_backward_and_given_back_by_it"""},
    },
    "init() makes models on the CPU, and the tests ask it for no other device": {
        "test_offload_files.py": {
            "Commits": "test_a_model_made_in_tiers_is_resumed",
            "Files": """
                test_a_model_that_was_saved_is_loaded_with_equal_bits
                test_other_dtypes_are_converted_as_torch_converts
                test_other_names_and_shapes_are_told_as_torch_tells_them
                test_shards_and_slices_have_equal_bits
                test_tensors_are_fetched_before_they_are_saved
                test_transformers_and_we_load_what_the_other_saved""",
            "Init": """
                test_a_model_that_is_refused_is_as_before
                test_a_model_that_was_made_in_tiers_trains_as_a_plain_one
                test_a_nested_model_has_the_values_of_plain_construction
                test_little_is_in_plain_memory_meanwhile
                test_memory_that_something_else_writes_to_stays_where_it_is
                test_models_of_transformers_have_the_values_of_plain_construction
                test_modules_of_torch_have_the_values_of_plain_construction
                test_tensors_of_parameters_that_nothing_refers_to_are_destroyed
                test_what_makes_no_sense_is_refused"""},
        "test_offload.py": {"Offload": """
            test_parameters_of_quantizers_are_refused_with_what_to_do"""},
        "test_offload_updates.py": {"InBackward": """
            test_a_model_that_was_made_in_tiers_is_updated_in_backward"""},
    },
    NOT_MAPPED: {
        "test_offload_lives.py": {"Lives": """
            test_tensors_over_weights_follow_them_after_close"""},
        "test_offload_several.py": {"Nodes": """
            test_a_weight_that_was_read_of_a_node_holds_up_no_step"""},
        "test_offload_states.py": {"State": """
            test_what_was_taken_of_a_parameter_before_a_step_has_its_new_values"""},
    },
    "backward passes run on a thread of autograd, which would wait for the step": {
        "test_offload_states.py": {"OwnCode": """
            test_a_closure_may_be_called_in_the_middle"""},
    },
    "the budget of the test is for blocks of 64 KiB, and those of a device have 2 MiB": {
        "test_offload.py": {"Offload": """
            test_a_unit_leaves_a_block_for_its_gradients_or_is_refused
            test_what_cannot_be_offloaded_is_refused_by_name"""},
        "test_offload_files.py": {"Commits": """
            test_of_what_is_frozen_there_is_one_copy_until_it_is_written"""},
        "test_offload_outside.py": {"Edges": """
            test_a_weight_that_does_not_fit_is_refused_by_name"""},
        "test_offload_several.py": {"Refused": """
            test_a_budget_of_less_than_a_block_names_the_argument"""},
        "test_offload_states.py": {"OwnCode": """
            test_one_parameter_and_its_states_are_pinned_at_a_time"""},
        "test_offload_saved.py": {"Rooms": """
            test_too_little_for_a_parameter_with_its_states_is_refused_at_offload
            test_layers_that_are_unfrozen_later_have_room_if_it_is_asked_for
            test_too_few_blocks_for_an_update_are_refused_at_offload
            test_without_room_on_the_drive_the_arguments_and_enough_are_named""", "Resumed": """
            test_an_offload_without_room_gives_gradients_back"""},
    },
    "no gradient stays in PyTorch's memory there, so none has a graph": {
        "test_offload_words.py": {"Words": """
            test_a_gradient_with_a_graph_is_a_term_of_a_loss_where_all_fits"""},
    },
    "accelerate, which trainers use, and lightning know no such device": {
        "test_offload_clients.py": {"Trainers": """
            test_a_loop_of_accelerate_has_the_losses_of_plain_torch
            test_the_trainer_of_lightning_has_the_losses_of_plain_torch
            test_the_trainer_of_transformers_logs_bytes_and_waits_and_writes_the_report
            test_the_trainer_of_transformers_trains_saves_and_resumes"""},
        "test_offload_words.py": {"Words": """
            test_what_accelerate_has_prepared_is_offloaded"""},
    },
    "an exported program takes all weights at once, and no fault brings those that have left": {
        "test_offload_outside.py": {"Wrappers": """
            test_an_exported_model_has_the_weights_of_training"""},
    },
}


def tests_of(file):
    """The reasons of a file's tests, by class and name."""
    return {f"{case}.{name}": reason for reason, files in REASONS.items()
            for case, names in files.get(file, {}).items() for name in names.split()}
